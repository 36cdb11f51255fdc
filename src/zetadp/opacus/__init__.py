"""Opacus for complex-valued networks and for patients with several images.

The training path of zetadp does not use this package. It is for users of Opacus; start at `engine`.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from zetadp.base.validation import UserError

# The classes here override methods inside Opacus. With a version of Opacus that adds noise or clips in other methods,
# training would run without an error and without a guarantee.
SUPPORTED = "1.6."

try:
    _installed = version("opacus")
except PackageNotFoundError as error:
    raise UserError(
        "zetadp.opacus needs Opacus, which is not installed. Install it with: pip install 'zetadp[opacus]'"
    ) from error
if not _installed.startswith(SUPPORTED):
    raise UserError(
        f"zetadp.opacus was written for Opacus {SUPPORTED}*, found {_installed}. "
        "Install with: pip install 'zetadp[opacus]'"
    )
