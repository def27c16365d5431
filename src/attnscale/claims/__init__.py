"""Popular claims: text, evidence, training, verdicts and the document of them."""
