"""Handling of freed memory by the C library."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of glibc's ``mallopt``."""
KEPT = 1 << 30
"""Bytes of freed memory that the process keeps."""


def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of freed memory for the next allocation, for the rest of the process.

    By default glibc returns freed blocks of megabytes to the system, which must soon clear and map them again. This
    took 6 to 13 % of a training step on a CPU (measured). Peak memory stays the same. Without glibc nothing happens.

    Returns
    -------
    Whether the C library took the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT) and mallopt(M_MMAP_MAX, 0))
