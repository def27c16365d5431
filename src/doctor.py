"""Examine the attentions of any PyTorch model; without words it says how."""

from attnscale.cli.doctor import run


def main() -> None:
    """Examine what the command line names."""
    run()


if __name__ == "__main__":
    main()
