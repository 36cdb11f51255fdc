"""Read clips of spoken words from the official folder layout or archive, and divide them by speaker.

The official data set is Speech Commands (Warden 2018, arXiv:1804.03209). The eight words are those of the excerpt that
TensorFlow's audio tutorial uses, whose numbers fit what Ziller et al. print.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
import wave
from collections import Counter
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from zetadp.cohort.download import download
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = ("down", "go", "left", "no", "right", "stop", "up", "yes")
RATE = 16_000
LENGTH = 16_000
"""Samples of a clip; shorter ones are padded with zeros at their end."""
ARCHIVE = "speech_commands_v0.02.tar.gz"
OFFICIAL_URL = f"https://storage.googleapis.com/download.tensorflow.org/data/{ARCHIVE}"
OFFICIAL_MD5 = "6b74f3901214cb2c2934e98196829835"
TESTED = 5
"""One speaker in so many only tests, about."""
NAME = re.compile(r"([0-9a-z]+)_nohash_(\d+)\.wav")
SHOWN = 20
"""Problems that a message lists."""


@dataclass(frozen=True)
class Clips:
    """Clips of spoken words, in the order of their names.

    Attributes
    ----------
    waves
        int16, shape (clip, `LENGTH`).
    labels
        Position of each clip's word in `WORDS`.
    speakers
        Who speaks, as the file's name says.
    names
        Name of each clip, made of word, speaker and number.
    """

    waves: np.ndarray
    labels: np.ndarray
    speakers: np.ndarray
    names: np.ndarray

    def part(self, wanted: np.ndarray) -> Clips:
        """Return some of the clips, by positions or by a mask."""
        return Clips(self.waves[wanted], self.labels[wanted], self.speakers[wanted], self.names[wanted])


def read_clips(source: Path) -> Clips:
    """Read every clip of the eight words.

    Parameters
    ----------
    source
        Folder with one folder a word, whose files are called ``<speaker>_nohash_<number>.wav``, or the official
        archive. Other words are left aside.

    Raises
    ------
    UserError
        One message with everything that is wrong: words without clips, names, and files that are not 16 kHz mono
        clips of 16 bits and at most a second.
    """
    if not source.exists():
        raise UserError(f"Expected a folder or an archive of spoken commands at {source}, found nothing.")
    problems: list[str] = []
    found: dict[str, tuple[np.ndarray, int, str]] = {}
    for word, file, content in _files(source):
        matched = NAME.fullmatch(file)
        if matched is None:
            problems.append(f"{word}/{file}: expected a name such as 004ae714_nohash_0.wav")
            continue
        samples = _samples(content)
        if isinstance(samples, str):
            problems.append(f"{word}/{file}: {samples}")
            continue
        speaker, number = matched.groups()
        found[f"{word}-{speaker}-{int(number):03d}"] = (samples, WORDS.index(word), speaker)
    counts = Counter(label for _, label, _ in found.values())
    problems += [f"{word}: no clip in a folder of this name" for n, word in enumerate(WORDS) if not counts[n]]
    if problems:
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        listed = "\n".join(f"  {line}" for line in [*problems[:SHOWN], *more])
        raise UserError(f"The clips in {source} have {len(problems)} problem(s):\n{listed}")
    names = sorted(found)
    waves, labels, speakers = zip(*(found[name] for name in names), strict=True)
    return Clips(np.stack(waves), np.array(labels), np.array(speakers), np.array(names))


def is_tested(speaker: str) -> bool:
    """Return whether a speaker only tests: a function of the speaker's key alone."""
    return int(hashlib.sha256(f"speech commands {speaker}".encode()).hexdigest()[:8], 16) % TESTED == 0


def capped(clips: Clips, most: int) -> Clips:
    """Drop clips of speakers who have more than a number: those whose names have the largest hashes.

    Which clips of a speaker stay depends on this speaker's names alone.
    """
    order = np.argsort([hashlib.sha256(name.encode()).hexdigest() for name in clips.names])
    seen: Counter[str] = Counter()
    kept = []
    for place in order:
        speaker = str(clips.speakers[place])
        if seen[speaker] < most:
            kept.append(place)
        seen[speaker] += 1
    return clips.part(np.sort(np.array(kept, dtype=np.int64)))


def fetch_archive(target: Path, *, url: str = OFFICIAL_URL, md5: str = OFFICIAL_MD5) -> None:
    """Download the official archive, 2.4 GB, resumed where it broke, and check it.

    The checksum is the one that torchaudio published for the archive.

    Raises
    ------
    UserError
        If the archive cannot be had.
    """
    download(url, target, md5)


def _files(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield word, name and content of every file of the eight words."""
    if source.is_dir():
        for word in WORDS:
            for path in sorted((source / word).glob("*.wav")):
                yield word, path.name, path.read_bytes()
        return
    try:
        with tarfile.open(source, "r|*") as archive:
            for member in archive:
                word, name = ("", *PurePosixPath(member.name).parts)[-2:]
                content = archive.extractfile(member) if word in WORDS and name.endswith(".wav") else None
                if content is not None:
                    yield word, name, content.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"Cannot read the archive {source}: {error}. Delete it and download it again.") from error


def _samples(content: bytes) -> np.ndarray | str:
    """Return the samples of a file, padded to one second, or what is wrong with it."""
    try:
        with wave.open(BytesIO(content)) as file:
            found = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            samples = np.frombuffer(file.readframes(file.getnframes()), dtype=np.uint8)
    except (wave.Error, EOFError) as error:
        return f"not a wav file of plain numbers ({error})"
    if found != (1, 2, RATE):
        return f"expected 1 channel, 2 bytes and {RATE} Hz, found {found[0]}, {found[1]} and {found[2]}"
    whole = samples[: len(samples) // 2 * 2].view("<i2")
    if not 0 < len(whole) <= LENGTH:
        return f"expected 1 to {LENGTH} samples, found {len(whole)}"
    return np.pad(whole.astype(np.int16), (0, LENGTH - len(whole)))
