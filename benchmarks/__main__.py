"""``python -m benchmarks``: print all tables."""

from .tables import main

if __name__ == "__main__":
    main()
