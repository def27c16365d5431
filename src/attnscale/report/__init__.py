"""What a table of runs says: differences with their uncertainty, and figures of whole sweeps."""
