"""Where a run's checkpoints are; whoever only looks for them need not import Lightning."""

FOLDER, LAST, PREVIOUS = "checkpoints", "last.ckpt", "previous.ckpt"
