"""What ``python -m zetadp.cli`` runs."""

import sys

from zetadp.cli import main

sys.exit(main())
