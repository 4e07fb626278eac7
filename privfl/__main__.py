"""``python -m privfl``: the command line."""

from privfl.cli import main

if __name__ == "__main__":
    main()
