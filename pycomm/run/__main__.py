"""Entry point of ``python -m pycomm.run``."""

import sys

from pycomm.run.cli import main

if __name__ == "__main__":
    sys.exit(main())
