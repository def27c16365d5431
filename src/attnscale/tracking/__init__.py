"""The record of runs: the only place that knows MLflow."""

from attnscale.system import ensure_home

ensure_home()
