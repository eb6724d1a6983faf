"""Entry point of ``python -m pycomm.bench``."""

import sys

from pycomm.bench.cli import main

if __name__ == "__main__":
    sys.exit(main())
