"""The configuration: its types, and how it becomes objects."""
