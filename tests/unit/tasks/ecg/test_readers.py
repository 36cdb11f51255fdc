"""Recordings of other programs, in three layouts: what is read of them, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from zetadp.base.storage import Items
from zetadp.base.tables import read_table
from zetadp.base.validation import UserError
from zetadp.tasks.ecg.collection import write_collection
from zetadp.tasks.ecg.readers import read_folder
from zetadp.tasks.ecg.recordings import LEADS, fold_of
from zetadp.tasks.ecg.simulated import simulated_recordings

PTBXL = Path(__file__).parents[5] / "shared/data/ecg_ptbxl"
HEARTS = [recording for recording, _ in simulated_recordings(8, seed=0, share=0.5, several=0, rate=100)]
SIGNALS = np.stack([each.signal.T for each in HEARTS])
FOLDS = [1, 1, 1, 1, 10, 10, 10, 10]
SICK = [each.label == 1 for each in HEARTS]
assert SICK == [False, True] * 4

Change = Callable[[pd.DataFrame], pd.DataFrame]


def same(table: pd.DataFrame) -> pd.DataFrame:
    return table


def collected(folder: Path, each: int = 4) -> tuple[pd.DataFrame, np.ndarray]:
    """Return table and signals of a folder's recordings, of which the patients of fold 10 test."""
    files = {f"{name}_file": folder / f"made/{name}.h5" for name in ("spectrum", "signal", "beats")}
    chosen = {"fold": 10, "population": "varied", "first": {"samples": 64, "rate": 100}, "seed": 0}
    sizes = {"train": each, "test": each}
    write_collection(**files, **chosen, table=folder / "made/index.csv", folder=str(folder), sizes=sizes)
    return read_table(folder / "made/index.csv"), Items.read(files["signal_file"]).arrays["values"][:, 0, 0]


def recordings(folder: Path, change: Change = same, **arrays) -> Path:
    """Write eight recordings in the layout of arrays."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "all.npz", **{"x": SIGNALS, "ecg_id": np.arange(8)} | arrays)
    table = pd.DataFrame({"ecg_id": range(8), "patient_id": [f"p{n}" for n in range(8)], "strat_fold": FOLDS})
    table["label"] = ["LBBB" if sick else "NORM" for sick in SICK]
    change(table).to_csv(folder / "labels.csv", index=False)
    return folder


def with_patients(**names: str) -> Change:
    """Give patients other names."""
    return lambda table: table.assign(patient_id=table["patient_id"].replace(names))


@pytest.mark.parametrize(
    ("name", "several"), [("p0", "fold"), ("p0 ", "p0"), ("p5", "label")], ids=["fold", "fold, by a space", "label"]
)
def test_a_patient_in_two_folds_or_with_both_labels_is_refused(tmp_path, name, several):
    with pytest.raises(UserError, match=several):
        collected(recordings(tmp_path, with_patients(p4=name)))


@pytest.mark.parametrize("fold", ["", "1.5", "0", "11", "NA"])
def test_a_fold_that_is_none_of_ten_is_refused(tmp_path, fold):
    def change(table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(strat_fold=table["strat_fold"].astype(str).where(table.index > 0, fold))

    with pytest.raises(UserError, match="strat_fold"):
        collected(recordings(tmp_path, change))


def test_the_parts_of_a_folder_are_folds_of_patients(tmp_path):
    recordings(tmp_path, with_patients(p2="p0", p3="p1", p6="p4", p7="p5"))
    table, signals = collected(tmp_path, 2)
    assert set(table["fold"][table["part"] == "test"]) == {"10"}
    assert table.groupby("patient")["part"].nunique().eq(1).all()
    assert signals.shape == (8, 64)
    with pytest.raises(UserError, match="3 patients in the part train as declared"):
        collected(tmp_path, 3)


def test_no_fold_depends_on_other_patients():
    dealt = [fold_of(f"A{n:04d}") for n in range(2000)]
    assert all(170 < dealt.count(fold) < 230 for fold in range(1, 11))


def flipped(content: bytes) -> bytes:
    return content[:2000] + bytes([content[2000] ^ 255]) + content[2001:]


@pytest.mark.parametrize("change", [lambda content: content[: len(content) // 2], lambda _: b"", flipped])
def test_a_damaged_array_is_refused_by_name(tmp_path, change):
    path = recordings(tmp_path) / "all.npz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=r"all\.npz"):
        collected(tmp_path)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"ecg_id": np.array([0, 1, 2, 3, 4, 5, 6, 7, 7]), "x": np.stack([*SIGNALS, SIGNALS[0]])}, "another ecg_id"),
        ({"ecg_id": np.arange(7)}, "another ecg_id"),
        ({"rate": np.array(0.0)}, "0 samples per second"),
        ({"rate": np.array(np.nan)}, "nan samples per second"),
        ({"rate": np.array([100, 100])}, "one number rate"),
        ({"x": SIGNALS.astype(complex)}, "complex128"),
        ({"x": np.zeros((8, 1000, 12), dtype=[("real", "f4"), ("imag", "f4")])}, "found"),
        *[({"x": factor * SIGNALS}, "mV") for factor in (1000.0, 1e-3, 1e6)],
    ],
)
def test_arrays_that_do_not_fit_or_cannot_be_in_millivolts_are_refused(tmp_path, arrays, said):
    with pytest.raises(UserError, match=said):
        collected(recordings(tmp_path, **arrays))


@pytest.fixture
def cpsc(tmp_path):
    """Write a folder as the challenge has it: six recordings, of which one has two labels and one a label of others."""
    for number, signal in enumerate(SIGNALS[:6]):
        content = {"sex": "Male", "age": 50 + number, "data": signal.T.astype(np.float64)}
        savemat(tmp_path / f"A{number:04d}.mat", {"ECG": content})
    rows = {"Recording": [f"A{n:04d}" for n in range(6)], "First_label": [1, 4, 1, 4, 1, 5]}
    rows |= {"Second_label": [None, None, None, None, None, 4], "Third_label": None}
    pd.DataFrame(rows).astype({"Second_label": "Int64"}).to_csv(tmp_path / "REFERENCE.csv", index=False)
    return tmp_path


def test_cpsc_is_read_as_written(cpsc):
    found = list(read_folder(cpsc))
    assert [(e.name, e.label, e.age, e.rate) for e in found] == [(f"A000{n}", n % 2, 50.0 + n, 500) for n in range(5)]
    for each, written in zip(found, SIGNALS, strict=False):
        np.testing.assert_array_equal(each.signal, written.T)


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


def wfdb_folder(folder: Path, units: list[str], leads: tuple[str, ...] = LEADS, change: Change = same) -> Path:
    """Write the recordings with WFDB, each lead in a unit of its own."""
    wfdb = pytest.importorskip("wfdb", reason="needs the package wfdb (extra ecg)")
    order = [LEADS.index(lead) for lead in leads]
    for n, signal in enumerate(SIGNALS.astype(float)):
        values = signal[:, order] * [UNITS.get(unit, 1.0) for unit in units]
        shown = [lead.upper() for lead in leads]
        wfdb.wrsamp(f"r{n}", 100, units, shown, values, fmt=["16"] * 12, write_dir=str(folder))
    codes = [f"{{'{'CLBBB' if sick else 'NORM'}': 100.0, 'SR': 0.0}}" for sick in SICK]
    table = pd.DataFrame({"ecg_id": range(8), "patient_id": np.arange(8.0), "scp_codes": codes, "strat_fold": FOLDS})
    table = change(table.assign(filename_lr=[f"r{n}" for n in range(8)]))
    table.to_csv(folder / "ptbxl_database.csv", index=False)
    return folder


@OF_WFDB
@pytest.mark.parametrize("units", [["uV"] * 12, ["V"] * 12, ["nV"] * 12, ["mV", "uV", "V"] * 4])
def test_wfdb_signals_are_in_millivolts_whatever_their_unit(tmp_path, units):
    found = collected(wfdb_folder(tmp_path, units))[1]
    expected = collected(recordings(tmp_path / "arrays"))[1]
    assert np.abs(found - expected).max() < 0.01


@OF_WFDB
def test_ptbxl_is_read_but_for_other_diagnoses_and_patients_with_both(tmp_path):
    def change(table: pd.DataFrame) -> pd.DataFrame:
        named = table.assign(patient_id=[0.0, 1, 2, 1, 4, 4, 6, 7], age=[44.0] + 7 * [300.0], device="CS-12   E")
        return named.assign(scp_codes=table["scp_codes"].mask(table.index == 2, "{'AFIB': 0.0}"))

    found = list(read_folder(wfdb_folder(tmp_path, ["mV"] * 12, LEADS[::-1], change)))
    assert [(each.name, each.patient, each.label, each.fold, each.age, each.device) for each in found] == [
        ("0", "0", 0, 1, 44.0, "CS-12 E"),
        *[(str(n), str(1 if n == 3 else n), n % 2, FOLDS[n], 90.0, "CS-12 E") for n in (1, 3, 6, 7)],
    ]
    np.testing.assert_allclose(found[1].signal, SIGNALS[1].T, atol=1e-3)
    (tmp_path / "r1.dat").unlink()
    with pytest.raises(UserError, match=r"1\. 1: "):
        list(read_folder(tmp_path))


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
        table.write_text(table.read_text().replace("{'NORM': 100.0, 'SR': 0.0}", "NORM: 100", 1))
    with pytest.raises(UserError, match={"unit": "mmHg", "gain": "gain", "codes": "scp_codes"}[fault]):
        collected(tmp_path)


@pytest.mark.skipif(not PTBXL.is_dir(), reason="needs the recordings of PTB-XL in ../shared/data/ecg_ptbxl")
def test_the_array_form_of_ptbxl():
    found = list(read_folder(PTBXL))
    assert len(found) == 485
    assert {each.signal.shape for each in found} == {(12, 1000)}
    assert {each.rate for each in found} == {100.0}
    assert sum(each.label for each in found) == 66
    filtered = [each for each in found if each.form == "filtered"]
    assert sum(each.label for each in filtered) == 58
    assert len({each.patient for each in filtered}) == 176
    assert {each.fold for each in filtered} == set(range(1, 11))
    assert max(each.age for each in found) < 120  # 300 stands for those over 89
    with np.load(next(PTBXL.glob("*.npz"))) as content:
        place = content["ecg_id"].tolist().index(int(found[7].name))
        np.testing.assert_array_equal(found[7].signal, content["x"][place].T)
