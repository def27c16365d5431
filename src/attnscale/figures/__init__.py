"""Charts, one per function, from plain tables. The plotting library is imported when one is drawn."""
