"""`python -m topics` is the program `topics` [U-3]."""

from topics.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
