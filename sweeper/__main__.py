"""``python -m sweeper`` is the ``sweep`` command."""

from sweeper.cli import main

if __name__ == "__main__":
    main()
