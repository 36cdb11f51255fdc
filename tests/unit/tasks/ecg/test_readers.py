from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from zetadp.base.validation import UserError
from zetadp.tasks.ecg.collection import read
from zetadp.tasks.ecg.readers import read_folder
from zetadp.tasks.ecg.recordings import LEADS
from zetadp.tasks.ecg.signals import SpectrumSettings
from zetadp.tasks.ecg.simulated import simulated_recordings

PTBXL = Path(__file__).parents[5] / "shared/data/ecg_ptbxl"


def signals(count: int, rate: float = 500) -> list[np.ndarray]:
    return [r.signal for r, _ in simulated_recordings(count, seed=0, share=0.5, several=0, rate=rate)]


@pytest.fixture
def cpsc(tmp_path):
    """Write a folder as the challenge has it: six recordings, of which one has two labels and one a label of others."""
    for number, signal in enumerate(signals(6)):
        content = {"sex": "Male", "age": 50 + number, "data": signal.astype(np.float64)}
        savemat(tmp_path / f"A{number:04d}.mat", {"ECG": content})
    rows = {"Recording": [f"A{n:04d}" for n in range(6)], "First_label": [1, 4, 1, 4, 1, 5]}
    rows |= {"Second_label": [None, None, None, None, None, 4], "Third_label": None}
    pd.DataFrame(rows).astype({"Second_label": "Int64"}).to_csv(tmp_path / "REFERENCE.csv", index=False)
    return tmp_path


def test_cpsc_is_read_as_written(cpsc):
    found = list(read_folder(cpsc))
    assert [(each.name, each.label, each.age) for each in found] == [
        ("A0000", 0, 50.0),
        ("A0001", 1, 51.0),
        ("A0002", 0, 52.0),
        ("A0003", 1, 53.0),
        ("A0004", 0, 54.0),
    ]
    for each, written in zip(found, signals(6), strict=False):
        assert each.rate == 500
        np.testing.assert_array_equal(each.signal, written)


def test_all_that_is_wrong_with_a_folder_is_named_at_once(cpsc):
    (cpsc / "A0000.mat").unlink()
    (cpsc / "A0001.mat").write_bytes(b"no matlab file")
    savemat(cpsc / "A0002.mat", {"ECG": {"age": 1, "data": np.ones((3, 9))}})
    savemat(cpsc / "A0003.mat", {"ECG": {"age": 1, "data": np.full((12, 9), np.nan)}})
    with pytest.raises(UserError) as told:
        list(read_folder(cpsc))
    said = str(told.value)
    assert all(f"A{n:04d}" in said for n in range(4))
    assert "no such file" in said
    assert "(3, 9)" in said
    assert "not finite" in said


def test_a_folder_of_no_known_layout_and_one_without_lbbb_are_refused(cpsc, tmp_path):
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


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, within wfdb
def test_ptbxl_is_read_through_wfdb(tmp_path):
    wfdb = pytest.importorskip("wfdb", reason="needs the package wfdb (extra ecg)")
    rows = []
    turned = [*LEADS[::-1]]  # the order of leads is a matter of the file
    for number, signal in enumerate(signals(4, rate=100)):
        name = f"{number:05d}_lr"
        shown = [lead.upper() for lead in turned]
        wfdb.wrsamp(
            name, 100, ["mV"] * 12, shown, signal[::-1].T.astype(float), fmt=["16"] * 12, write_dir=str(tmp_path)
        )
        codes = {0: "{'NORM': 100.0, 'SR': 0.0}", 1: "{'CLBBB': 100.0}", 2: "{'AFIB': 0.0}", 3: "{'NORM': 50.0}"}
        rows.append(
            (number, float(number % 3), 300.0 if number else 44.0, "CS-12   E", codes[number], 1 + number, name)
        )
    columns = ["ecg_id", "patient_id", "age", "device", "scp_codes", "strat_fold", "filename_lr"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "ptbxl_database.csv", index=False)
    found = list(read_folder(tmp_path))
    described = [(each.name, each.patient, each.label, each.fold, each.age, each.device) for each in found]
    assert described == [
        ("0", "0", 0, 1, 44.0, "CS-12 E"),
        ("1", "1", 1, 2, 90.0, "CS-12 E"),
        ("3", "0", 0, 4, 90.0, "CS-12 E"),
    ]
    np.testing.assert_allclose(found[1].signal, signals(4, rate=100)[1], atol=1e-3)
    (tmp_path / "00001_lr.dat").unlink()
    with pytest.raises(UserError, match=r"1\. 1: "):
        list(read_folder(tmp_path))


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


def test_the_parts_of_a_folder_are_folds_of_patients(tmp_path):
    made = [r for r, _ in simulated_recordings(40, seed=1, share=0.5, several=0.5, rate=100)]
    np.savez(tmp_path / "all.npz", x=np.stack([each.signal.T for each in made]), ecg_id=[each.name for each in made])
    rows = [(e.name, e.patient, ("NORM", "LBBB")[e.label], 1 + int(e.patient[-1]) // 2, "a") for e in made]
    columns = ["ecg_id", "patient_id", "label", "strat_fold", "form"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "labels.csv", index=False)
    first = SpectrumSettings(samples=32)
    found = read(tmp_path, first, 2, {"train": 32, "test": 8})
    assert set(found.table["fold"][found.table["part"] == "test"]) == {2}
    assert found.table.groupby("patient")["part"].nunique().eq(1).all()
    assert found.signals.shape == (len(made), 32)
    with pytest.raises(UserError, match="33 patients in the part train as declared"):
        read(tmp_path, first, 2, {"train": 33, "test": 8})
