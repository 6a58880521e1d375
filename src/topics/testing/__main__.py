"""`python -m topics.testing COMMAND`: prove what the log promises; see `commands`."""

import sys

from topics.testing.commands import main

if __name__ == "__main__":
    sys.exit(main())
