"""`python -m secateur` is the command `secateur`."""

import sys

from secateur.cli import main

if __name__ == "__main__":
    sys.exit(main())
