"""What spans jobs: overrides and their checks, the parent run, what jobs leave behind, Slurm."""
