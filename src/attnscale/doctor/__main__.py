"""``python -m attnscale.doctor``."""

from attnscale.cli.doctor import run

run()
