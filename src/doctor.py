"""Examine the attentions of any PyTorch model; without words it says how."""

from attnscale.cli.doctor import run

if __name__ == "__main__":
    run()
