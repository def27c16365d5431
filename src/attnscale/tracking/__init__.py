"""The record of runs: the only place that knows MLflow."""
