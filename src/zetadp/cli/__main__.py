"""Run the command line as ``python -m zetadp.cli``."""

import sys

from zetadp.cli import main

sys.exit(main())
