"""Recordings of other programs, in three layouts: what is read of them, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat
from scipy.signal import resample_poly

from papers.complex_dp.ecg.collection import read_folder, write_collection
from papers.complex_dp.ecg.recordings import LEADS, fold_of
from papers.complex_dp.ecg.simulated import simulated_recordings
from zetadp.base.storage import Items
from zetadp.base.tables import read_table
from zetadp.base.validation import UserError

PTBXL = Path(__file__).parents[5] / "shared/data/ecg_ptbxl"
HEARTS = [recording for recording, _ in simulated_recordings(8, seed=0, share=0.5, several=0, rate=100)]
SIGNALS = np.stack([each.signal.T for each in HEARTS])
SICK = [each.label == 1 for each in HEARTS]
assert SICK == [False, True] * 4


def recordings(folder: Path, patients: str = "01234567", first_fold: str = "1", age: str = "", **arrays: Any) -> Path:
    """Write eight recordings in the layout of arrays: the first four of fold 1, the others of fold 10."""
    np.savez(folder / "all.npz", **{"x": SIGNALS, "ecg_id": np.arange(8)} | arrays)
    table = pd.DataFrame({"ecg_id": range(8), "patient_id": [f"p{name}" for name in patients]})
    table["strat_fold"] = [first_fold, *"111", *4 * ["10"]]
    table["label"] = ["LBBB" if sick else "NORM" for sick in SICK]
    table["age"] = age
    table.to_csv(folder / "labels.csv", index=False)
    return folder


def collected(folder: Path, each: int = 4) -> tuple[pd.DataFrame, np.ndarray]:
    """Return table and signals of a folder's recordings, with a declared number of patients in each part."""
    files = {f"{name}_file": folder / f"made/{name}.h5" for name in ("spectrum", "signal", "beats")}
    sizes = {"train": each, "test": each}
    write_collection(**files, table=folder / "made/index.csv", folder=str(folder), seed=0, sizes=sizes)
    return read_table(folder / "made/index.csv"), Items.read(files["signal_file"]).arrays["values"][:, 0, 0]


def reordered(*names: str) -> np.ndarray:
    """Return the signals with other leads at the places of the first ones."""
    order = [LEADS.index(name) for name in names]
    return SIGNALS[..., order + [lead for lead in range(12) if lead not in order]]


FAST = resample_poly(SIGNALS, 5, 1, axis=1, padtype="line")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a patient in two folds": ({"patients": "01230567"}, "fold"),
    "names that differ by a space": ({"patients": ["0", *"123", "0 ", *"567"]}, "p0"),
    "a patient with both labels": ({"patients": "01235567"}, "label"),
    "no fold": ({"first_fold": ""}, "strat_fold"),
    "half a fold": ({"first_fold": "1.5"}, "strat_fold"),
    "an eleventh fold": ({"first_fold": "11"}, "strat_fold"),
    "a recording twice": ({"ecg_id": [*range(8), 7], "x": np.stack([*SIGNALS, SIGNALS[0]])}, "another ecg_id"),
    "a recording too few": ({"ecg_id": np.arange(7)}, "another ecg_id"),
    "no rate": ({"rate": np.array(0.0)}, "0 samples per second"),
    "a rate that is not finite": ({"rate": np.array(np.nan)}, "nan samples per second"),
    "two rates": ({"rate": np.array([100, 100])}, "one number rate"),
    "complex signals": ({"x": SIGNALS.astype(complex)}, "complex128"),
    "pairs": ({"x": np.zeros((8, 1000, 12), dtype=[("real", "f4"), ("imag", "f4")])}, "found"),
    "microvolts": ({"x": 1000 * SIGNALS}, "mV"),
    "volts": ({"x": SIGNALS / 1000}, "mV"),
    "one lead in another unit": ({"x": SIGNALS * np.where(np.arange(12) == 4, 3, 1)}, "found aVL other than"),
    "limb leads after the others": ({"x": reordered("I", "II", "V1", "V2", "V3", "V4")}, "III, aVR, aVL, aVF other"),
    "aVL before aVR": ({"x": reordered("I", "II", "III", "aVL", "aVR")}, "found aVR, aVL other than"),
    "I and II exchanged": ({"x": reordered("II", "I")}, "in another order"),
    "standardised leads in another order": (
        {"x": (x := reordered("I", "II", "III", "aVL", "aVR")) / x.std(axis=1, keepdims=True)},
        "in another order",
    ),
    "500 samples per second as 100": ({"x": FAST}, "25 times a minute"),
    "100 samples per second as 250": ({"rate": np.array(250.0)}, "the whole folder"),
    "an age with a comma": ({"age": "65,5"}, "65,5"),
    "one recording of two people": (
        {"x": np.concatenate([SIGNALS[:4], SIGNALS[:1], SIGNALS[5:]])},
        "same content in 0 of p0 and 4 of p4",
    ),
}


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_arrays_and_tables_that_do_not_fit_are_refused(tmp_path, changes, said):
    with pytest.raises(UserError, match=said):
        collected(recordings(tmp_path, **changes))


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_damaged_array_is_refused_by_name(tmp_path, damage):
    path = recordings(tmp_path) / "all.npz"
    content = path.read_bytes()
    flipped = content[:2000] + bytes([content[2000] ^ 255]) + content[2001:]
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "flipped": flipped}[damage])
    with pytest.raises(UserError, match=r"all\.npz"):
        collected(tmp_path)


def test_the_parts_of_a_folder_are_folds_of_patients(tmp_path):
    table, signals = collected(recordings(tmp_path, "01014545"), 2)
    assert set(table["fold"][table["part"] == "test"]) == {"10"}
    assert table.groupby("patient")["part"].nunique().eq(1).all()
    assert signals.shape == (8, 512)
    for each, written in zip(read_folder(tmp_path), SIGNALS, strict=True):
        np.testing.assert_array_equal(each.signal, written.T)
    with pytest.raises(UserError, match="3 patients in the part train as declared"):
        collected(tmp_path, 3)
    dealt = [fold_of(f"A{n:04d}") for n in range(2000)]  # of files without folds, each by its name alone
    assert all(170 < dealt.count(fold) < 230 for fold in range(1, 11))


@pytest.fixture
def cpsc(tmp_path):
    """Write a folder as the challenge has it: six recordings, of which one has two labels and one a label of others."""
    for number, signal in enumerate(FAST[:6]):
        savemat(tmp_path / f"A{number:04d}.mat", {"ECG": {"sex": "Male", "age": 50, "data": signal.T.astype(float)}})
    rows = {"Recording": [f"A{n:04d}" for n in range(6)], "First_label": [1, 4, 1, 4, 1, 5]}
    rows |= {"Second_label": [None, None, None, None, None, 4], "Third_label": None}
    pd.DataFrame(rows).astype({"Second_label": "Int64"}).to_csv(tmp_path / "REFERENCE.csv", index=False)
    return tmp_path


def test_cpsc_is_read_as_written(cpsc):
    found = list(read_folder(cpsc))
    assert [(each.name, each.label, each.rate) for each in found] == [(f"A000{n}", n % 2, 500) for n in range(5)]
    for each, written in zip(found, FAST, strict=False):
        np.testing.assert_allclose(each.signal, written.T, rtol=1e-6, atol=1e-7)


def test_all_that_is_wrong_with_a_folder_is_named_at_once(cpsc):
    (cpsc / "A0000.mat").unlink()
    (cpsc / "A0001.mat").write_bytes(b"no matlab file")
    savemat(cpsc / "A0002.mat", {"ECG": {"age": 1, "data": np.ones((3, 9))}})
    savemat(cpsc / "A0003.mat", {"ECG": {"age": 1, "data": np.full((12, 9), np.nan)}})
    with pytest.raises(UserError) as told:
        list(read_folder(cpsc))
    said = str(told.value)
    assert all(part in said for part in (*(f"A{n:04d}" for n in range(4)), "no such file", "(3, 9)", "not finite"))


def test_a_folder_of_no_known_layout_and_one_without_lbbb_are_refused(cpsc):
    table = pd.read_csv(cpsc / "REFERENCE.csv")
    table[table["First_label"] == 1].to_csv(cpsc / "REFERENCE.csv", index=False)
    with pytest.raises(UserError, match="none with label LBBB"):
        read_folder(cpsc)
    (cpsc / "REFERENCE.csv").write_text("Name\nA0000\n")
    with pytest.raises(UserError, match="Recording, First_label"):
        read_folder(cpsc)
    (cpsc / "REFERENCE.csv").unlink()
    with pytest.raises(UserError, match=r"REFERENCE\.csv, ptbxl_database\.csv, labels\.csv"):
        read_folder(cpsc)


OF_WFDB = pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, within wfdb
UNITS = {"mV": 1.0, "uV": 1e3, "V": 1e-3, "nV": 1e6}


def wfdb_folder(folder: Path, units: list[str], **columns: Any) -> Path:
    """Write the recordings with WFDB, each lead in a unit of its own, the last lead first."""
    wfdb = pytest.importorskip("wfdb", reason="needs the package wfdb (extra ecg)")
    for n, signal in enumerate(SIGNALS.astype(float)[..., ::-1]):
        values = signal * [UNITS.get(unit, 1.0) for unit in units]
        shown = [lead.upper() for lead in LEADS[::-1]]
        wfdb.wrsamp(f"r{n}", 100, units, shown, values, fmt=["16"] * 12, write_dir=str(folder))
    codes = [f"{{'{'CLBBB' if sick else 'NORM'}': 100.0, 'SR': 0.0}}" for sick in SICK]
    table = {"ecg_id": range(8), "patient_id": np.arange(8.0), "scp_codes": codes, "strat_fold": 4 * [1] + 4 * [10]}
    table |= {"filename_lr": [f"r{n}" for n in range(8)], **columns}
    pd.DataFrame(table).to_csv(folder / "ptbxl_database.csv", index=False)
    return folder


@OF_WFDB
def test_ptbxl_is_read_in_any_unit_but_for_other_diagnoses_and_patients_with_both(tmp_path):
    others = {"patient_id": [0.0, 1, 2, 1, 4, 4, 6, 7], "age": [44.0] + 7 * [300.0], "device": "CS-12   E"}
    wfdb_folder(tmp_path, ["mV", "uV", "V", "nV"] * 3, **others)
    table = tmp_path / "ptbxl_database.csv"
    rows = pd.read_csv(table)
    rows["scp_codes"] = rows["scp_codes"].mask(rows.index == 2, "{'AFIB': 0.0}")
    rows.to_csv(table, index=False)
    found = list(read_folder(tmp_path))
    assert [(each.name, each.patient, each.label, each.fold, each.age, each.device) for each in found] == [
        ("0", "0", 0, 1, 44.0, "CS-12 E"),
        *[(str(n), str(1 if n == 3 else n), n % 2, 1 if n < 4 else 10, 90.0, "CS-12 E") for n in (1, 3, 6, 7)],
    ]
    np.testing.assert_allclose(found[1].signal, SIGNALS[1].T, atol=1e-3)
    (tmp_path / "r1.dat").unlink()
    with pytest.raises(UserError, match=r"1\. 1: "):
        list(read_folder(tmp_path))


@OF_WFDB
@pytest.mark.parametrize("fault", ["mmHg", "gain", "scp_codes"])
def test_wfdb_recordings_without_a_known_scale_are_refused(tmp_path, fault):
    wfdb_folder(tmp_path, ["mmHg" if fault == "mmHg" else "mV"] * 12)
    for path in tmp_path.glob("*.hea") if fault == "gain" else ():
        path.write_text(re.sub(r"^(\S+\.dat \S+) \S+", r"\1 0/mV", path.read_text(), flags=re.MULTILINE))
    if fault == "scp_codes":
        table = tmp_path / "ptbxl_database.csv"
        table.write_text(table.read_text().replace("{'NORM': 100.0, 'SR': 0.0}", "NORM: 100", 1))
    with pytest.raises(UserError, match=fault):
        collected(tmp_path)


@OF_WFDB
@pytest.mark.parametrize("fault", ["zeros", "exchanged"])
def test_samples_other_than_those_of_the_header_are_refused(tmp_path, fault):
    wfdb_folder(tmp_path, ["mV"] * 12)
    first, second = tmp_path / "r0.dat", tmp_path / "r1.dat"
    content = first.read_bytes()
    if fault == "exchanged":
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
    else:
        first.write_bytes(content[:12000] + bytes(4000) + content[16000:])
    with pytest.raises(UserError, match="0: expected the samples that the header's checksums describe"):
        collected(tmp_path)


@pytest.mark.parametrize("ending", [".npz", ".NPZ"])
def test_a_second_array_is_noticed_however_its_ending_is_written(tmp_path, ending):
    recordings(tmp_path)
    (tmp_path / f"more{ending}").write_bytes(b"")
    with pytest.raises(UserError, match=r"one \.npz file .* found 2"):
        collected(tmp_path)


@pytest.mark.skipif(not PTBXL.is_dir(), reason="needs the recordings of PTB-XL in ../shared/data/ecg_ptbxl")
def test_the_array_form_of_ptbxl():
    found = list(read_folder(PTBXL))
    assert len(found) == 485
    assert {(each.signal.shape, each.rate) for each in found} == {((12, 1000), 100.0)}
    assert sum(each.label for each in found) == 66
    filtered = [each for each in found if each.form == "filtered"]
    assert (sum(each.label for each in filtered), len({each.patient for each in filtered})) == (58, 176)
    assert {each.fold for each in filtered} == set(range(1, 11))
    assert max(each.age for each in found) < 120  # 300 stands for those over 89
