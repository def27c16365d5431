"""What watches a run: curves, checkpoints, progress."""
