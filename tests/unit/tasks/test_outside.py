"""What comes from outside is checked where it is read: recordings, clips and examinations of other programs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from zetadp.base.validation import UserError
from zetadp.mri.kspace import to_kspace
from zetadp.tasks.ecg.collection import Collection, read
from zetadp.tasks.ecg.recordings import LEADS, fold_of
from zetadp.tasks.ecg.signals import SpectrumSettings
from zetadp.tasks.ecg.simulated import simulated_recordings
from zetadp.tasks.reconstruction.volumes import read_volume
from zetadp.tasks.speech_commands.clips import WORDS, read_clips

HEARTS = [recording for recording, _ in simulated_recordings(8, seed=0, share=0.5, several=0, rate=100)]
SIGNALS = np.stack([each.signal.T for each in HEARTS])
FOLDS = dict(zip(sorted(range(8), key=lambda n: (HEARTS[n].label, n)), [1, 1, 10, 10] * 2, strict=True))


def collected(folder: Path) -> Collection:
    """Return the recordings of a folder, of which the patients of fold 10 test."""
    return read(folder, SpectrumSettings(samples=64, rate=100), 10, {"train": 4, "test": 4})


def recordings(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table, **arrays) -> Path:
    """Write eight recordings in the layout of arrays."""
    folder.mkdir(exist_ok=True)
    signals = {"x": SIGNALS, "ecg_id": np.arange(8)}
    np.savez(folder / "all.npz", **signals | arrays)
    table = pd.DataFrame({"ecg_id": range(8), "patient_id": [f"p{n}" for n in range(8)]})
    table["label"] = [("NORM", "LBBB")[each.label] for each in HEARTS]
    change(table.assign(strat_fold=[FOLDS[n] for n in range(8)])).to_csv(folder / "labels.csv", index=False)
    return folder


def with_patient(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Give the first healthy patient of fold 10 another name."""

    def change(table: pd.DataFrame) -> pd.DataFrame:
        own = table.index[(table["label"] == "NORM") & (table["strat_fold"] == 10)][0]
        return table.assign(patient_id=table["patient_id"].mask(table.index == own, name))

    return change


def first_patient() -> str:
    """Return the first healthy patient of fold 1."""
    return f"p{min(n for n in range(8) if FOLDS[n] == 1 and HEARTS[n].label == 0)}"


@pytest.mark.parametrize("space", ["", " "])
def test_a_patient_in_two_folds_is_refused(tmp_path, space):
    with pytest.raises(UserError, match=first_patient()):
        collected(recordings(tmp_path / "a", with_patient(first_patient() + space)))


@pytest.mark.parametrize("fold", ["", "1.5", "0", "11", "NA"])
def test_a_fold_that_is_none_of_ten_is_refused(tmp_path, fold):
    def change(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(strat_fold=table["strat_fold"].astype(str).where(table.index > 0, fold))

    with pytest.raises(UserError, match="strat_fold"):
        collected(recordings(tmp_path, change))


@pytest.mark.parametrize("name", ["NA", "None", "nan", "007", "1e5"])
def test_a_patient_may_have_any_name(tmp_path, name):
    assert name in collected(recordings(tmp_path, with_patient(name))).table["patient"].tolist()


def damaged(change: Callable[[bytearray], bytes]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(change(bytearray(path.read_bytes())))

    return write


def flipped(content: bytearray) -> bytes:
    content[2000] ^= 255
    return bytes(content)


@pytest.mark.parametrize("change", [lambda all_: bytes(all_[: len(all_) // 2]), lambda _: b"", flipped])
def test_a_damaged_array_is_refused_by_name(tmp_path, change):
    damaged(change)(recordings(tmp_path) / "all.npz")
    with pytest.raises(UserError, match=r"all\.npz"):
        collected(tmp_path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"ecg_id": np.array([0, 1, 2, 3, 4, 5, 6, 7, 7]), "x": np.stack([*SIGNALS, SIGNALS[0]])},
        {"rate": np.array(0.0)},
        {"rate": np.array(np.nan)},
        {"rate": np.array([100, 100])},
        {"ecg_id": np.arange(7)},
        {"x": SIGNALS.astype(complex)},
        {"x": np.zeros((8, 1000, 12), dtype=[("real", "f4"), ("imag", "f4")])},
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, arrays):
    with pytest.raises(UserError):
        collected(recordings(tmp_path, **arrays))


@pytest.mark.parametrize("factor", [1000.0, 1e-3, 1e6])
def test_a_recording_that_cannot_be_in_millivolts_is_refused(tmp_path, factor):
    with pytest.raises(UserError, match="mV"):
        collected(recordings(tmp_path, x=factor * SIGNALS))


def test_hidden_files_beside_an_array_do_not_exist(tmp_path):
    (recordings(tmp_path) / "._all.npz").write_bytes(b"\0\5\x16\7")
    assert len(collected(tmp_path).table) == 8


OF_WFDB = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, within wfdb
UNITS = {"mV": 1.0, "uV": 1e3, "V": 1e-3, "nV": 1e6}


def wfdb_folder(folder: Path, units: list[str]) -> Path:
    """Write the recordings with WFDB, each lead in a unit of its own."""
    wfdb = pytest.importorskip("wfdb")
    rows = []
    for n, each in enumerate(HEARTS):
        signal = each.signal.T.astype(float) * [UNITS.get(unit, 1.0) for unit in units]
        wfdb.wrsamp(f"r{n}", 100, units, list(LEADS), signal, fmt=["16"] * 12, write_dir=str(folder))
        code = "NORM" if each.label == 0 else "CLBBB"
        rows.append((n, float(n), f"{{'{code}': 100.0}}", FOLDS[n], f"r{n}"))
    columns = ["ecg_id", "patient_id", "scp_codes", "strat_fold", "filename_lr"]
    pd.DataFrame(rows, columns=columns).to_csv(folder / "ptbxl_database.csv", index=False)
    return folder


@OF_WFDB
@pytest.mark.parametrize("units", [["uV"] * 12, ["V"] * 12, ["nV"] * 12, ["mV", "uV", "V"] * 4])
def test_wfdb_signals_are_in_millivolts_whatever_their_unit(tmp_path, units):
    found = collected(wfdb_folder(tmp_path, units)).signals
    expected = collected(recordings(tmp_path / "arrays")).signals
    assert np.abs(found - expected).max() < 0.01


@OF_WFDB
@pytest.mark.parametrize("fault", ["unit", "gain", "codes"])
def test_wfdb_recordings_without_a_known_scale_are_refused(tmp_path, fault):
    wfdb_folder(tmp_path, ["mmHg" if fault == "unit" else "mV"] * 12)
    if fault == "gain":
        for path in tmp_path.glob("*.hea"):
            lines = [line.split() for line in path.read_text().splitlines()]
            path.write_text("".join(" ".join([*w[:2], "0/mV", *w[3:]] if ".dat" in w[0] else w) + "\n" for w in lines))
    if fault == "codes":
        table = tmp_path / "ptbxl_database.csv"
        table.write_text(table.read_text().replace("{'NORM': 100.0}", "NORM: 100", 1))
    with pytest.raises(UserError, match={"unit": "mmHg", "gain": "gain", "codes": "scp_codes"}[fault]):
        collected(tmp_path)


def test_no_fold_depends_on_other_patients():
    names = [f"A{n:04d}" for n in range(2000)]
    dealt = [fold_of(name) for name in names]
    assert all(170 < dealt.count(fold) < 230 for fold in range(1, 11))


TONE = (8000 * np.sin(np.arange(16000) / 9)).astype("<i2")


def wav(samples: bytes, declared: int | None = None, after: bytes = b"") -> bytes:
    """Return a wav file with some samples, and a size in its header that may be wrong."""
    form = struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16)
    data = struct.pack("<I", len(samples) if declared is None else declared) + samples
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + data + after
    return b"RIFF" + struct.pack("<I", len(body)) + body


def clips(folder: Path, name: str, content: bytes) -> Path:
    """Write a good clip of each word, and another file among them."""
    for word in WORDS:
        (folder / word).mkdir(parents=True)
        (folder / word / "aa11_nohash_0.wav").write_bytes(wav(TONE.tobytes()))
    (folder / "yes" / name).write_bytes(content)
    return folder


WHOLE = wav(TONE.tobytes())
INFO = b"LIST" + struct.pack("<I", 26) + b"INFOISFT" + struct.pack("<I", 14) + b"Lavf58.29.100\0"


@pytest.mark.parametrize(
    "content",
    [
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:60],
        WHOLE[:-2],
        wav(TONE.tobytes(), declared=0xFFFFFFFF),
        wav(TONE[:9000].tobytes(), declared=0xFFFFFFFF, after=INFO),
        wav(TONE.tobytes()[:-1]),
    ],
)
def test_a_clip_that_is_not_whole_is_refused(tmp_path, content):
    with pytest.raises(UserError, match="bb22_nohash_0"):
        read_clips(clips(tmp_path, "bb22_nohash_0.wav", content))


def test_one_clip_never_replaces_another(tmp_path):
    with pytest.raises(UserError, match="aa11"):
        read_clips(clips(tmp_path, "aa11_nohash_00.wav", WHOLE))


def test_hidden_files_beside_clips_do_not_exist(tmp_path):
    assert len(read_clips(clips(tmp_path, "._aa11_nohash_0.wav", b"\0\5\x16\7")).names) == len(WORDS)


Y, X = np.mgrid[-1:1:64j, -1:1:32j]
HEAD = ((Y / 0.8) ** 2 + (X / 0.6) ** 2 < 1).astype(float)
SPOT = (((Y - 0.3) / 0.2) ** 2 + (X / 0.2) ** 2 < 1) * 0.5
IMAGE = np.stack([HEAD * (1 + 0.1 * n) + SPOT for n in range(3)]) * np.exp(1j * (X + Y))
KSPACE = to_kspace(IMAGE).astype(np.complex64)
TARGET = np.abs(IMAGE)[:, 16:48].astype(np.float32)


def examination(path: Path, kspace: object = KSPACE, target: object = TARGET, patient: object = "p") -> Path:
    """Write an examination in the layout of fastMRI; what is None is left out."""
    with h5py.File(path, "w") as file:
        if kspace is None:
            file.create_group("kspace")
        else:
            file["kspace"] = kspace
        if target is not None:
            file["reconstruction_esc"] = target
        file.attrs.update({} if patient is None else {"patient_id": patient})
    return path


def compound() -> np.ndarray:
    pairs = np.empty(KSPACE.shape, [("real", "<f4"), ("imag", "<f4")])
    pairs["real"], pairs["imag"] = KSPACE.real, KSPACE.imag
    return pairs


EMPTY = KSPACE * (np.arange(3) > 0)[:, None, None]


@pytest.mark.parametrize(
    "given",
    [
        {"kspace": KSPACE[::-1]},
        {"kspace": KSPACE[[0, 2, 1]]},
        {"kspace": np.abs(KSPACE)},
        {"kspace": np.fft.fft2(IMAGE, norm="ortho").astype(np.complex64)},
        {"kspace": np.roll(KSPACE, 1, axis=0)},
        {"kspace": EMPTY},
        {"kspace": 0 * KSPACE},
        {"kspace": compound()},
        {"kspace": None},
        {"kspace": np.full_like(KSPACE, np.nan)},
        {"target": None},
        {"patient": None},
        {"kspace": KSPACE[:0], "target": TARGET[:0]},
        {"target": TARGET[:, ::-1]},
        {"kspace": 2 * KSPACE},
        {"patient": ""},
        {"patient": 3.5},
        {"patient": np.array(["p", "q"], dtype=h5py.string_dtype())},
    ],
)
def test_an_examination_that_is_not_what_it_seems_is_refused(tmp_path, given):
    with pytest.raises(UserError, match=r"one\.h5"):
        read_volume(examination(tmp_path / "one.h5", **given))


@pytest.mark.parametrize("patient", [np.bytes_("p"), np.array(["p"], dtype=h5py.string_dtype())])
def test_a_patient_is_the_same_however_the_file_holds_the_name(tmp_path, patient):
    assert read_volume(examination(tmp_path / "one.h5", patient=patient)).patient == "p"
