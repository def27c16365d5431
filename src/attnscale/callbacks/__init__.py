"""What watches a run: curves, gradients, attentions and their pictures, checkpoints, progress."""
