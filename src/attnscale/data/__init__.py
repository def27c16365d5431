"""The data: what is learned from, and how it is cut into batches."""
