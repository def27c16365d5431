"""Charts, one per function, from plain tables."""
