"""Download the official archive (with resumption and a checksum), and unpack it safely."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO

from zetadp.base.storage import folder_written_whole, writing
from zetadp.base.validation import UserError

logger = logging.getLogger(__name__)

OFFICIAL_URL = "https://msd-for-monai.s3-us-west-2.amazonaws.com/Task01_BrainTumour.tar"
OFFICIAL_MD5 = "240a19d752f0d9e9101544901065d872"
CHUNK = 1 << 20
REPORT = 10.0
"""Seconds between two lines of the log about a download."""
END_OF_TAR = 1024
"""Zero bytes at the end of every whole tar archive."""

AGAIN = "Delete the archive and download it again."


class _BrokenError(Exception):
    """An attempt that ended early; the next one continues the partial file."""


def download(
    url: str,
    target: Path,
    md5: str,
    *,
    retries: int = 5,
    timeout: float = 60.0,
    pause: float = 1.0,
) -> None:
    """Download a file over HTTP and check it; an existing correct target is left unchanged.

    A partial file stays next to the target as ``<name>.part``. The next attempt, also by another process, continues it
    with an HTTP range, or starts again if the server does not support ranges.

    Parameters
    ----------
    url
        Address, http or https.
    target
        Path of the file, written only after its checksum matches.
    md5
        The publisher's MD5 checksum in hexadecimal. It detects transmission errors, but is no signature.
    retries
        Largest number of failed attempts in a row, after the first, in which no new bytes arrive.
    timeout
        Seconds without an answer after which an attempt has failed.
    pause
        Seconds before the first retry; doubled each time, at most a minute.

    Raises
    ------
    UserError
        If the address is not HTTP, the attempts are used up, or the disk cannot be written.
    """
    if not url.startswith(("https://", "http://")):
        raise UserError(f"Expected an address that begins with https:// or http://, found {url!r}.")
    if target.is_file() and _md5(target) == md5.lower():
        return
    partial = target.with_name(f"{target.name}.part")
    failures, furthest = 0, partial.stat().st_size if partial.is_file() else 0
    while True:
        try:
            _continue(url, partial, timeout)
            if (found := _md5(partial)) == md5.lower():
                partial.replace(target)
                return
            partial.unlink()
            reason = f"expected the MD5 checksum {md5}, found {found}; what had arrived was deleted"
        except _BrokenError as error:
            reason = str(error)
        arrived = partial.stat().st_size if partial.is_file() else 0
        failures = 1 if arrived > furthest else failures + 1
        furthest = max(furthest, arrived)
        if failures > retries:
            raise UserError(
                f"Cannot download {url} to {target}: {reason} (after {retries} retries). Check the address and the "
                "connection and run again to go on, or put the file there by hand."
            )
        time.sleep(min(pause * 2 ** (failures - 1), 60.0))


def fetch_cohort(*, dataset: Path, url: str = OFFICIAL_URL, md5: str = OFFICIAL_MD5) -> None:
    """Download the brain task of the Decathlon or the rest of it, check it, unpack it whole, and remove the archive.

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
    """Unpack an uncompressed tar archive with one top folder; that folder becomes ``folder``, whole or not at all.

    Python's filter for data refuses names and links that leave the folder, devices and pipes. The resource files
    ``._*`` that macOS puts into archives are left out.

    The remains of an interrupted call are replaced: its temporary folder, and a ``folder`` in which every file equals
    the file of this archive.

    Raises
    ------
    UserError
        If the archive is missing, damaged, has an unsafe member or not one top folder, or ``folder`` holds files.
    """
    if not archive.is_file():
        raise UserError(f"Expected the archive {archive}, found no such file. Download it first.")
    # Python's reader does not notice that an archive was cut within a header.
    with archive.open("rb") as file:
        file.seek(-min(END_OF_TAR, archive.stat().st_size), os.SEEK_END)
        if file.read() != bytes(END_OF_TAR):
            raise UserError(f"Cannot unpack {archive}: it has no end, or is no uncompressed tar archive. {AGAIN}")
    _remove_remains(archive, folder)
    with folder_written_whole(folder) as temporary:
        top: set[str] = set()
        files_at_top: list[str] = []
        try:
            # Read as a stream: once through, without an index of members in memory.
            with tarfile.open(archive, mode="r|") as tar:
                for member in tar:
                    path = PurePosixPath(member.name)
                    if path.name.startswith("._"):
                        continue
                    top.update(path.parts[:1])
                    if len(path.parts) > 1:
                        inner = PurePosixPath(*path.parts[1:]).as_posix()
                        tar.extract(member.replace(name=inner, deep=False), temporary, filter="data")
                    elif not member.isdir():
                        files_at_top.append(member.name)
        except (tarfile.TarError, EOFError) as error:
            raise UserError(f"Cannot unpack {archive}: {error}. {AGAIN}") from error
        if len(top) != 1 or files_at_top:
            raise UserError(
                f"Expected one folder at the top of {archive}, found {', '.join(sorted(top)) or 'nothing'}. "
                "Check that it is the archive of one Decathlon task."
            )


def _remove_remains(archive: Path, folder: Path) -> None:
    """Remove the files of a process that was killed after it had unpacked the archive, if they are all from it."""
    files = {path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()}
    if not files:
        return
    with suppress(tarfile.TarError), tarfile.open(archive, mode="r|") as tar:
        for member in tar:
            name = Path(*PurePosixPath(member.name).parts[1:])
            if name in files and member.isreg() and _same_content(tar.extractfile(member), folder / name):
                files.remove(name)
    if not files:
        shutil.rmtree(folder, ignore_errors=True)


def _same_content(packed: IO[bytes] | None, path: Path) -> bool:
    if packed is None or path.is_symlink() or not path.is_file():
        return False
    return packed.read() == path.read_bytes()


def _continue(url: str, partial: Path, timeout: float) -> None:
    """Download the missing rest of a file; raise `_BrokenError` if the server or the connection fails."""
    start = partial.stat().st_size if partial.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})  # noqa: S310  (scheme checked)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:  # noqa: S310
            if response.status != http.HTTPStatus.PARTIAL_CONTENT:
                start = 0
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                raise _BrokenError(f"asked for the bytes from {start}, found {response.headers.get('Content-Range')!r}")
            length = response.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            arrived = _store(response, partial, start, total)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return  # All is there already, or more than all: the checksum decides.
        raise _BrokenError(f"the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(f"the connection failed ({error})") from error
    if total is not None and arrived < total:
        raise _BrokenError(f"the connection ended after {arrived} of {total} bytes")


def _store(response: http.client.HTTPResponse, partial: Path, start: int, total: int | None) -> int:
    """Append a response to the partial file, or start it again; return the size of the file."""
    began = said = time.monotonic()
    arrived = start
    with writing(partial):
        partial.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("ab" if start else "wb")
    with file:
        while chunk := response.read(CHUNK):
            with writing(partial):
                file.write(chunk)
            arrived += len(chunk)
            if (now := time.monotonic()) - said >= REPORT:
                said = now
                share = f" of {total / 1e9:.2f}" if total else ""
                logger.info("%.2f%s GB, %.1f MB/s", arrived / 1e9, share, (arrived - start) / (now - began) / 1e6)
    return arrived


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
