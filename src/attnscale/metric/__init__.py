"""Validation and test figures: sums that do not depend on batch size, order or processes."""
