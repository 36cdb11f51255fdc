"""The voxels of a volume on disk: decompressed in one pass, one channel at a time, and checked to the end.

Reading is bound by decompression, so it goes through Intel's igzip.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from zetadp.cohort.decathlon import DAMAGED, MEND, Volume
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator


def channels_of(volume: Volume) -> Iterator[np.ndarray]:
    """Yield each channel in file order, through one buffer; raise a `UserError` where the file is damaged."""
    shape = volume.shape[:3]
    buffer = bytearray(int(np.prod(shape)) * volume.dtype.itemsize)
    try:
        with volume.open() as stream:
            stream.read(volume.offset)
            for index in range(volume.shape[3]):
                filled = 0
                while filled < len(buffer) and (got := stream.readinto(memoryview(buffer)[filled:])):  # type: ignore[attr-defined]
                    filled += got
                if filled < len(buffer):
                    msg = (
                        f"Expected {volume.shape[3]} channels of {len(buffer)} bytes in {volume.path}, found that "
                        f"channel {index} ends after {filled} bytes: the file is truncated. {MEND}"
                    )
                    raise UserError(msg)
                yield np.frombuffer(buffer, dtype=volume.dtype).reshape(shape, order="F")
            # The checksum of a gzip file is compared at its end only.
            while stream.readinto(buffer):  # type: ignore[attr-defined]
                pass
    except DAMAGED as error:
        msg = f"Cannot decompress {volume.path}: {error}. The file is truncated or altered. {MEND}"
        raise UserError(msg) from error


def check_complete(volume: Volume) -> None:
    """Raise a `UserError` unless the file holds all voxels that its header announces.

    A gzip file ends with the size of what it holds, modulo 4 GiB. Where that agrees with the header nothing is
    decompressed; damage in the middle is then found by the checksum when the volume is read. Where it does not (the
    file was cut, or was written in several gzip members) the whole file is decompressed to find out.
    """
    announced = volume.offset + int(np.prod(volume.shape)) * volume.dtype.itemsize
    with volume.path.open("rb") as file:
        size = file.seek(-4, os.SEEK_END) + 4
        recorded = int.from_bytes(file.read(4), "little") if volume.path.suffix == ".gz" else size
    if recorded != announced % 2**32:
        for _ in channels_of(volume):
            pass
