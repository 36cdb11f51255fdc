"""Download the brain task of the Medical Segmentation Decathlon and unpack it."""

import logging
from pathlib import Path

from zetadp.base.workflow import run
from zetadp.mri.download import OFFICIAL_MD5, OFFICIAL_URL, download, extract


def main(*, dataset: Path, url: str = OFFICIAL_URL, md5: str = OFFICIAL_MD5) -> None:
    """Download the archive or the rest of it, check it, unpack it whole or not at all, and remove it."""
    folder = dataset.parent
    archive = folder.with_suffix(".tar")
    download(url, archive, md5)
    logging.getLogger(__name__).info("unpacking %s", archive)
    extract(archive, folder)
    archive.unlink()


if __name__ == "__main__":
    run(main)
