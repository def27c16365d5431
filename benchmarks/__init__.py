"""What make bench runs: timings against other ways of doing the same."""
