"""What the papers behind the method print, and what is true: experiments, rivals and kept tables."""

import zetadp.report  # noqa: F401  (before matplotlib, for which it chooses how figures are drawn)
