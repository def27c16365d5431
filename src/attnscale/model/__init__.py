"""The models, in plain PyTorch."""
