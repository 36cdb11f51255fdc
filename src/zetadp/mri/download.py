"""Download the official archive (with resumption and a checksum), and unpack it safely."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path, PurePosixPath

from zetadp.base.storage import folder_written_whole
from zetadp.base.validation import UserError

logger = logging.getLogger(__name__)

OFFICIAL_URL = "https://msd-for-monai.s3-us-west-2.amazonaws.com/Task01_BrainTumour.tar"
OFFICIAL_MD5 = "240a19d752f0d9e9101544901065d872"
CHUNK = 1 << 20
REPORT = 10.0
"""Seconds between two lines of the log about a download."""


def download(url: str, target: Path, md5: str, *, timeout: float = 60.0) -> None:
    """Download a file over HTTP and check it; an existing correct target is left unchanged.

    A partial file stays next to the target as ``<name>.part``. The next call, also by another process, continues it
    with an HTTP range, or starts again if the server does not support ranges. The rules of the workflow call again.

    Parameters
    ----------
    url
        Address, a constant of this project, http or https.
    target
        Path of the file, written only after its checksum matches.
    md5
        The publisher's MD5 checksum in hexadecimal. It detects transmission errors, but is not a signature.
    timeout
        Seconds without an answer after which the download has failed.

    Raises
    ------
    UserError
        If the server or the connection fails, the checksum differs, or the disk cannot be written.
    """
    if target.is_file() and _md5(target) == md5.lower():
        return
    partial = target.with_name(f"{target.name}.part")
    try:
        _continue(url, partial, timeout)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"Cannot download {url} to {target}: {error}. Check the address, the connection and the disk and run again "
            "to go on, or put the file there by hand."
        ) from error
    if (checksum := _md5(partial)) != md5.lower():
        partial.unlink()
        raise UserError(
            f"Expected the MD5 checksum {md5} of {url}, found {checksum}; the partial file was deleted. Run "
            f"again, or put {target} there by hand."
        )
    partial.replace(target)


def _continue(url: str, partial: Path, timeout: float) -> None:
    """Download the missing rest of a file; raise `OSError` or `HTTPException` if that fails."""
    start = partial.stat().st_size if partial.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310  (a constant)
    try:
        response = urllib.request.urlopen(request, timeout=timeout)  # noqa: S310  (a constant)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return  # The file is complete or too long: the checksum decides.
        raise
    partial.parent.mkdir(parents=True, exist_ok=True)
    # A server without ranges sends the file from its beginning.
    mode = "ab" if response.status == http.HTTPStatus.PARTIAL_CONTENT else "wb"
    with response, partial.open(mode) as file:
        last_report = time.monotonic()
        while chunk := response.read(CHUNK):
            file.write(chunk)
            if time.monotonic() - last_report >= REPORT:
                last_report = time.monotonic()
                logger.info("%.2f GB, %.2f GB to come", file.tell() / 1e9, (response.length or 0) / 1e9)
        if response.length:
            raise ConnectionError(f"{response.length} bytes are missing")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def fetch_cohort(*, dataset: Path, url: str = OFFICIAL_URL, md5: str = OFFICIAL_MD5) -> None:
    """Download the brain task of the Decathlon or its missing rest, check it, unpack it whole, and remove the archive.

    Parameters
    ----------
    dataset
        ``dataset.json`` of the task's folder, which is written.
    url, md5
        Address of the archive, and the checksum of its content.
    """
    folder = dataset.parent
    archive = folder.with_suffix(".tar")
    download(url, archive, md5)
    logger.info("unpacking %s", archive)
    extract(archive, folder)
    archive.unlink()


def extract(archive: Path, folder: Path) -> None:
    """Unpack the official archive, an uncompressed tar; its one top folder becomes ``folder``, whole or not at all.

    Only files are unpacked. The resource files ``._*`` that macOS puts into archives are left out.

    The remains of an interrupted call are replaced: its temporary folder, and a ``folder`` in which every file has name
    and size of a file of this archive.

    Raises
    ------
    UserError
        If ``folder`` holds other files, or a file of the archive lies outside its top folder.
    """
    with tarfile.open(archive, mode="r:") as tar:
        members = {}
        for member in tar:
            path = PurePosixPath(member.name)
            if member.isfile() and not path.name.startswith("._"):
                if ".." in path.parts or len(path.parts) == 1:
                    raise UserError(f"Cannot unpack {archive}: its file {member.name!r} lies outside its top folder.")
                members["/".join(path.parts[1:])] = member
        files = [path for path in folder.rglob("*") if not path.is_dir()]
        sizes = {path.relative_to(folder).as_posix(): path.lstat().st_size for path in files}
        if sizes.items() <= {name: member.size for name, member in members.items()}.items():
            shutil.rmtree(folder, ignore_errors=True)
        with folder_written_whole(folder) as temporary:
            # Python before 3.11.4 has no filter that makes `extractall` safe.
            for name, member in members.items():
                target = temporary / name
                target.parent.mkdir(parents=True, exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None  # never None for a regular file
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file)
