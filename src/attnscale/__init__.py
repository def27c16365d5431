"""attnscale measures what the scale of attention does."""

__version__ = "0.1.0"
