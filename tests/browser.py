"""Pages as a browser shows them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest


def show(page: Path, folder: Path) -> tuple[np.ndarray, str]:
    """Return a page as a picture, shape (row, column, colour) from 0 to 1, and what the browser's console printed.

    Without the browser a test is skipped; in continuous integration it fails.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        reason = "needs the program chromium (Debian: chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    picture = folder / "shown.png"
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += ["--window-size=1000,1400", f"--user-data-dir={folder / 'profile'}", f"--screenshot={picture}"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, check=True, timeout=120)
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return matplotlib.image.imread(picture)[..., :3], console
