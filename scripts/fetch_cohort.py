"""Download the brain task of the Medical Segmentation Decathlon and unpack it."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from zetadp.base.workflow import run
from zetadp.mri.download import OFFICIAL_MD5, OFFICIAL_URL, download, extract


def main(*, dataset: Path, url: str = OFFICIAL_URL, md5: str = OFFICIAL_MD5) -> None:
    """Download the archive or the rest of it, check it, unpack it whole or not at all, and remove it."""
    folder = dataset.parent
    archive = folder.with_suffix(".tar")
    download(url, archive, md5, progress=every(10.0))
    logging.getLogger(__name__).info("unpacking %s", archive)
    extract(archive, folder)
    archive.unlink()


def every(seconds: float) -> Callable[[int, int | None, float], None]:
    """Return a progress callback that logs at most once in the given number of seconds."""
    last = 0.0

    def report(arrived: int, total: int | None, rate: float) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            share = f" of {total / 1e9:.2f}" if total else ""
            logging.getLogger(__name__).info("%.2f%s GB, %.1f MB/s", arrived / 1e9, share, rate / 1e6)

    return report


if __name__ == "__main__":
    run(main)
