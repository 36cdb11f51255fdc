"""Reading clips, dropping what is too much, dividing them by speaker, and their spectrograms."""

from __future__ import annotations

import struct
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from papers.complex_dp.speech_commands.clips import (
    LENGTH,
    RATE,
    WORDS,
    capped,
    chosen,
    index_clips,
    is_tested,
    read_clips,
)
from papers.complex_dp.speech_commands.encoder import FOURIER, FRAME, STEP, spectrogram
from zetadp.base.tables import read_table
from zetadp.base.validation import UserError

SPEAKERS = [f"{number:08x}" for number in range(1, 13)]


def wav(samples: np.ndarray, rate: int = RATE, channels: int = 1) -> bytes:
    """Return a wav file of 16 bits."""
    content = BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Return a folder of clips: every word of every speaker, three times of the first one."""
    random = np.random.default_rng(0)
    for word in WORDS:
        (tmp_path / word).mkdir()
        for speaker in SPEAKERS:
            for number in range(3 if speaker == SPEAKERS[0] else 1):
                samples = random.integers(-1000, 1000, 16_000 if number else 12_000)
                (tmp_path / f"{word}/{speaker}_nohash_{number}.wav").write_bytes(wav(samples))
    (tmp_path / "bed").mkdir()
    (tmp_path / "bed/00000001_nohash_0.wav").write_bytes(wav(np.ones(5)))  # another word of the official set
    (tmp_path / "LICENSE").write_text("CC BY 4.0")
    return tmp_path


def test_clips_are_read_with_word_and_speaker_and_padded_at_their_end(folder):
    clips = read_clips(folder)
    waves = clips.arrays["values"]
    assert waves.shape == (8 * 14, LENGTH)
    assert waves.dtype == np.int16
    place = clips.names["clip"].tolist().index(f"left-{SPEAKERS[4]}-000")
    assert (WORDS[clips.arrays["labels"][place]], clips.names["speaker"][place]) == ("left", SPEAKERS[4])
    own = (folder / f"left/{SPEAKERS[4]}_nohash_0.wav").read_bytes()
    assert waves[place, :12_000].astype("<i2").tobytes() == own[44:]
    assert (waves[place, 12_000:] == 0).all()
    assert clips.names["clip"].is_monotonic_increasing


WRONG = {
    "go/00000003_nohash_7.wav": (wav(np.ones(100), rate=8000), "found 1, 2 and 8000"),
    "go/00000003_nohash_8.wav": (wav(np.ones(200), channels=2), "found 2, 2 and 16000"),
    "no/00000003_nohash_7.wav": (wav(np.ones(16_001)), "found 16001"),
    "no/00000003_nohash_8.wav": (wav(np.ones(0)), "found 0"),
    "up/00000003_nohash_7.wav": (b"no sound", "not a wav file"),
    "up/recording.wav": (b"", "expected a name such as"),
}


def test_everything_that_is_wrong_stands_in_one_message(folder):
    for name, (content, _) in WRONG.items():
        (folder / name).write_bytes(content)
    for path in (folder / "yes").iterdir():
        path.unlink()
    with pytest.raises(UserError) as caught:
        read_clips(folder)
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 7
    for word, said in {"yes": "no clip", **{name: said for name, (_, said) in WRONG.items()}}.items():
        assert [line for line in lines if f". {word}:" in line and said in line], word


WHOLE = wav(8000 * np.sin(np.arange(16000) / 9))
STREAMED = WHOLE[:40] + b"\xff\xff\xff\xff" + WHOLE[44:]  # its header declares more samples than it has
INFO = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf58.29.100\0"


ODD = WHOLE[:40] + struct.pack("<I", 31_999) + WHOLE[44:-1]  # half a sample at its end, as its header says
CUT = [WHOLE[:16000], WHOLE[:60], WHOLE[:-2], ODD, STREAMED, STREAMED[:18000] + INFO]


@pytest.mark.parametrize("content", CUT)
def test_a_clip_that_is_not_whole_is_refused(folder, content):
    (folder / "yes/bb22_nohash_0.wav").write_bytes(content)
    with pytest.raises(UserError, match="bb22_nohash_0"):
        read_clips(folder)


def test_one_clip_never_replaces_another_and_hidden_files_do_not_exist(folder):
    (folder / f"yes/._{SPEAKERS[0]}_nohash_0.wav").write_bytes(b"\0\5\x16\7")
    assert len(read_clips(folder).names) == 8 * 14
    (folder / f"yes/{SPEAKERS[0]}_nohash_00.wav").write_bytes(WHOLE)
    with pytest.raises(UserError, match=SPEAKERS[0]):
        read_clips(folder)


def test_a_clip_of_two_speakers_is_refused_and_one_with_an_ending_in_capitals_is_read(folder, caplog):
    clip = folder / f"yes/{SPEAKERS[3]}_nohash_0.wav"
    clip.with_name(f"{SPEAKERS[3].upper()}_nohash_1.WAV").write_bytes(clip.read_bytes())
    assert len(read_clips(folder).names) == 8 * 14 + 1
    assert "1 time, such as yes-" in caplog.text
    clip.with_name(f"{SPEAKERS[7]}_nohash_4.wav").write_bytes(clip.read_bytes())
    with pytest.raises(UserError, match=rf" and yes-{SPEAKERS[7]}-004 of {SPEAKERS[7]}"):
        read_clips(folder)


def indexed(folder: Path, unit: str, sizes: dict[str, int]) -> pd.DataFrame:
    """Return the index of a folder, with all its clips."""
    made = {"clips": folder / "clips.h5", "table": folder / "index.csv"}
    index_clips(**made, source=folder, unit=unit, clips_of_a_speaker=40, sizes=sizes)
    return read_table(made["table"])


def test_units_are_speakers_or_clips_and_who_tests_follows_from_the_speaker_alone(folder):
    tested = {speaker for speaker in SPEAKERS if is_tested(speaker)}
    assert 0 < len(tested) < len(SPEAKERS)
    counts = {"train": 12 - len(tested), "test": len(tested)}
    rows = indexed(folder, "speaker", counts)
    assert set(rows["record"][rows["part"] == "test"]) == tested
    clips = read_clips(folder).names
    count = int(clips["speaker"].map(is_tested).sum())
    rows = indexed(folder, "clip", {"train": len(clips) - count, "test": count})
    assert set(rows["record"]) == set(clips["clip"])
    assert rows["sha256"].nunique() == len(rows)
    many = [is_tested(f"{number:08x}") for number in range(4000)]  # a fifth of them, whoever the others are
    assert np.mean(many) == pytest.approx(0.2, abs=4 * (0.2 * 0.8 / 4000) ** 0.5)
    with pytest.raises(UserError, match=rf"Expected 3 patients in the part train .*, found {counts['train']} "):
        indexed(folder, "speaker", {**counts, "train": 3})


def test_which_clips_of_a_speaker_stay_does_not_depend_on_others(folder):
    clips = read_clips(folder)
    kept = capped(clips, 5).names.groupby("speaker")["clip"].agg(set)
    assert max(map(len, kept)) == 5
    for speaker in SPEAKERS[:3]:
        alone = capped(clips.part(clips.names["speaker"].to_numpy() == speaker), 5)
        assert set(alone.names["clip"]) == kept[speaker]
    # Those who test keep all.
    before, after = (each.names["speaker"].value_counts() for each in (clips, chosen(clips, 5)))
    for speaker in SPEAKERS:
        assert after[speaker] == (before[speaker] if is_tested(speaker) else 5)


def test_a_spectrogram_is_a_direct_transform_of_windowed_frames():
    waves = np.random.default_rng(0).integers(-(2**15), 2**15, (2, LENGTH)).astype(np.int16)
    found = spectrogram(waves)
    assert found.shape == (2, 124, 129)
    assert found.dtype == np.complex64
    for frame in (0, 60, 123):
        part = waves[1, frame * STEP : frame * STEP + FRAME] / 2**15
        # tf.signal.hann_window of 255 points: an odd length takes the period 254.
        windowed = part * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / 254))
        wave_of = np.exp(-2j * np.pi * np.outer(np.arange(129), np.arange(FRAME)) / FOURIER)
        assert np.allclose(found[1, frame], wave_of @ windowed, rtol=1e-4, atol=1e-4)
    assert (spectrogram(waves[1:])[0] == found[1]).all()
