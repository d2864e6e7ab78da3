"""``python -m torchckn``, and ``torchckn``: the command."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while it is imported ends it like any other."""
    try:
        from .cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
