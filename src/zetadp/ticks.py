"""Ends at whole multiples of a fixed time, where the time that work took must not show."""

from __future__ import annotations

import math
import time


def wait_for_tick(begun: float, tick: float) -> None:
    """Sleep until a whole number of ticks has passed.

    Parameters
    ----------
    begun
        When the work began, as `time.monotonic` said then.
    tick
        Seconds. Zero does not wait.
    """
    if tick > 0:
        passed = time.monotonic() - begun
        time.sleep(max(0.0, math.ceil(passed / tick) * tick - passed))
