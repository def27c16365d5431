"""What spans jobs: the parent run, the checks before job 0, the summary."""
