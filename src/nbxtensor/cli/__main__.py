"""`python -m nbxtensor.cli`: the command where no package is installed."""

import sys

from nbxtensor.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
