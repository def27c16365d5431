"""One vocabulary for results: runs and settings, estimates and differences, curves."""
