"""Read clips of spoken words from the official folder, and split them by speaker.

The official data set is Speech Commands (Warden 2018, arXiv:1804.03209). The eight words are those of TensorFlow's
audio tutorial. The size of the tutorial's excerpt matches the numbers that Ziller et al. print.
"""

from __future__ import annotations

import hashlib
import logging
import re
import wave
from collections import Counter
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from zetadp.base.storage import Items
from zetadp.base.tables import check_contents, visible, write_cohort
from zetadp.base.validation import UserError, refuse

if TYPE_CHECKING:
    from pathlib import Path

logger = logging.getLogger(__name__)

NAMES = ("record", "clip", "speaker")
"""Columns of texts in files of clips. A record is a clip or a speaker."""
WORDS = ("down", "go", "left", "no", "right", "stop", "up", "yes")
RATE = 16_000
LENGTH = 16_000
"""Samples per clip. Shorter clips are padded with zeros at their end."""
TESTED = 5
"""About one in this many speakers is a test speaker."""
NAME = re.compile(r"([0-9a-z]+)_nohash_(\d+)\.wav", re.IGNORECASE)


def read_clips(source: Path) -> Items:
    """Read every clip of the eight words.

    Parameters
    ----------
    source
        A folder with one subfolder per word. Files are called ``<speaker>_nohash_<number>.wav``. Other words are
        ignored.

    Returns
    -------
    Clips, sorted by name. Arrays are ``values`` (int16, shape (clip, `LENGTH`)) and ``labels`` (position of each clip's
    word in `WORDS`). Names are clip (word, speaker and number) and speaker.

    Raises
    ------
    UserError
        If the source is missing or cannot be read. Also if words have no clips, names are wrong, or files are not mono
        clips of 16 bits at 16 kHz and at most a second, or if two speakers have the same clip: one message then lists
        these problems.
    """
    if not source.is_dir():
        raise UserError(f"Expected a folder of spoken commands at {source}, found none.")
    problems: list[str] = []
    clips: dict[str, tuple[np.ndarray, int, str]] = {}
    for path in (path for word in WORDS for path in visible(source / word, "*.wav")):
        word, matched = path.parent.name, NAME.fullmatch(path.name)
        if matched is None:
            problems.append(f"{word}/{path.name}: expected a name such as 004ae714_nohash_0.wav")
            continue
        samples = _samples(path.read_bytes())
        if isinstance(samples, str):
            problems.append(f"{word}/{path.name}: {samples}")
            continue
        speaker, number = matched[1].lower(), matched[2]
        name = f"{word}-{speaker}-{int(number):03d}"
        if name in clips:
            problems.append(f"{word}/{path.name}: another file has this word, speaker and number")
        clips[name] = (samples, WORDS.index(word), speaker)
    counts = Counter(label for _, label, _ in clips.values())
    problems += [f"{word}: no clip in a folder of this name" for n, word in enumerate(WORDS) if not counts[n]]
    names = sorted(clips)
    refuse(problems, f"in the clips {source}")
    silent = [name for name in names if not clips[name][0].any()]
    voiced = [name for name in names if clips[name][0].any()]
    rows = pd.DataFrame({"record": voiced, "patient": [clips[name][2] for name in voiced]})
    contents = (hashlib.sha256(clips[name][0].tobytes()).hexdigest() for name in voiced)
    check_contents(rows, contents, f"the clips {source}")
    waves, labels, speakers = zip(*(clips[name] for name in names), strict=True)
    if silent:
        logger.warning("%d clips hold nothing but zeros, such as %s", len(silent), silent[0])
    table = pd.DataFrame({"clip": names, "speaker": speakers})
    return Items({"values": np.stack(waves), "labels": np.array(labels)}, table)


def is_tested(speaker: str) -> bool:
    """Return whether a speaker is a test speaker. This depends on the speaker's identifier alone."""
    return int(hashlib.sha256(f"speech commands {speaker}".encode()).hexdigest()[:8], 16) % TESTED == 0


def capped(clips: Items, most: int) -> Items:
    """Limit the number of clips per speaker.

    A speaker keeps the clips whose names have the smallest hashes. The choice depends on this speaker's clips alone.

    Parameters
    ----------
    clips
        The clips.
    most
        Largest number of clips per speaker.
    """
    table = clips.names.reset_index(drop=True)
    hashes = [hashlib.sha256(name.encode()).hexdigest() for name in table["clip"]]
    rows = table.assign(hash=hashes).sort_values("hash").groupby("speaker").head(most).index
    return clips.part(np.sort(rows.to_numpy()))


def chosen(clips: Items, most: int) -> Items:
    """Return all clips of test speakers, and at most a given number of clips of every training speaker."""
    tested = clips.names["speaker"].map(is_tested).to_numpy()
    names = capped(clips.part(~tested), most).names["clip"]
    return clips.part(tested | clips.names["clip"].isin(names).to_numpy())


def index_clips(
    *, clips: Path, table: Path, source: Path, unit: str, clips_of_a_speaker: int, sizes: dict[str, int]
) -> None:
    """Write the clips in use, and one row for each unit: patient, record (the same), part, scanner, sha256.

    Parameters
    ----------
    clips, table
        Files that are written.
    source
        As in `read_clips`.
    unit
        ``clip`` or ``speaker``.
    clips_of_a_speaker
        Largest number of clips of a training speaker.
    sizes
        Declared number of units in each part, ``train`` and ``test``.

    Raises
    ------
    UserError
        If clips cannot be read, or a number of units differs from the declared number.
    """
    items = chosen(read_clips(source), clips_of_a_speaker)
    items = replace(items, names=items.names.assign(record=items.names[unit]))
    rows = []
    for owner, positions in sorted(items.names.groupby("record").indices.items()):
        part = "test" if is_tested(items.names["speaker"].iloc[positions[0]]) else "train"
        digest = hashlib.sha256(items.arrays["values"][positions].tobytes()).hexdigest()
        rows.append({"patient": owner, "record": owner, "part": part, "scanner": "", "sha256": digest})
    write_cohort(table, pd.DataFrame(rows), sizes, "the clips")
    items.write(clips, ("clip", "sample"), "1")


def _samples(content: bytes) -> np.ndarray | str:
    """Return the samples of a file, padded to one second, or a text that names the problem."""
    try:
        with wave.open(BytesIO(content)) as file:
            format_ = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            declared, samples = file.getnframes(), file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        return f"not a wav file with uncompressed samples ({error})"
    if format_ != (1, 2, RATE):
        return f"expected 1 channel, 2 bytes and {RATE} Hz, found {format_[0]}, {format_[1]} and {format_[2]}"
    # A wav file has an even number of bytes. A streamed one declares more than it has, and may end with other content.
    if len(samples) != 2 * declared or len(content) % 2:
        return (
            f"expected {declared} whole samples as its header says, found {len(samples) / 2:g}: it is cut or streamed"
        )
    if not 0 < declared <= LENGTH:
        return f"expected 1 to {LENGTH} samples, found {declared}"
    return np.pad(np.frombuffer(samples, dtype="<i2").astype(np.int16), (0, LENGTH - declared))
