"""Read recordings of patients from files, in three layouts: CPSC 2018, PTB-XL (WFDB), and arrays.

A reader yields all recordings that it can read. After the last one, it reports all unreadable recordings in one error.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from zetadp.base.validation import UserError
from zetadp.tasks.ecg.recordings import LABELS, LEADS, Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    # A recording without its signal, and a function that reads signal, rate and age (None if the table has the age).
    Entry = tuple[Recording, Callable[[], tuple[np.ndarray, float, float | None]]]

CPSC_RATE = 500.0
CPSC_LABELS = {1: 0, 4: 1}
"""Labels of the challenge's table: 1 is normal, 4 is LBBB. Recordings with other labels are left out."""
PTBXL_LABELS = {"NORM": 0, "CLBBB": 1}
ARRAYS_RATE = 100.0
MOST_NAMED = 5
OLDEST = 120.0
"""Ages from this value on become 90 years: PTB-XL writes 300 for everybody over 89."""
NOTHING = np.zeros((len(LEADS), 0), dtype=np.float32)


def read_folder(folder: Path) -> Iterator[Recording]:
    """Read the normal and the LBBB recordings of a folder. The layout is found by the name of its table.

    Raises
    ------
    UserError
        If the folder has none of the known layouts, or has no recordings of one label. Also after the last recording,
        if some recordings could not be read.
    """
    readers: dict[str, Callable[[Path], Iterator[Recording]]] = {
        "REFERENCE.csv": read_cpsc,
        "ptbxl_database.csv": read_ptbxl,
        "labels.csv": read_arrays,
    }
    for name, reader in readers.items():
        if (folder / name).is_file():
            return reader(folder)
    raise UserError(f"Expected one of {', '.join(readers)} in {folder}, found none. docs/ecg.md lists the layouts.")


def read_cpsc(folder: Path) -> Iterator[Recording]:
    """Yield the recordings of the China Physiological Signal Challenge 2018 (Liu et al., doi:10.1166/jmihi.2018.2442).

    ``REFERENCE.csv`` has columns Recording and First_label to Third_label. Each recording is a file ``<Recording>.mat``
    with a struct ``ECG`` of fields ``sex``, ``age`` and ``data`` (12 leads at 500 Hz, in mV). Only the first label
    counts. This gives the 1125 recordings of the paper. The data set does not identify patients, so each recording
    counts as one patient.
    """
    table = _table(folder / "REFERENCE.csv", "Recording", "First_label")
    first = pd.to_numeric(table["First_label"], errors="coerce")
    own = first.isin(CPSC_LABELS)
    entries = [
        (Recording(name, name, NOTHING, CPSC_RATE, CPSC_LABELS[int(label)]), partial(_matlab, folder / f"{name}.mat"))
        for name, label in zip(table["Recording"][own], first[own], strict=True)
    ]
    return _read(folder, entries)


def read_ptbxl(folder: Path) -> Iterator[Recording]:
    """Yield the recordings of PTB-XL (Wagner et al. 2020, doi:10.1038/s41597-020-0495-6) with NORM or CLBBB.

    ``ptbxl_database.csv`` names the WFDB files of each recording. The file with 500 samples per second is used if it
    exists. Patients with recordings of both labels are left out.
    """
    table = _table(folder / "ptbxl_database.csv", "ecg_id", "patient_id", "scp_codes", "strat_fold", "filename_lr")
    codes = table["scp_codes"].map(lambda text: set(ast.literal_eval(text)) & set(PTBXL_LABELS))
    table = table.assign(label=[PTBXL_LABELS[min(own)] if len(own) == 1 else -1 for own in codes])
    table = table[table["label"] >= 0]
    both = table.groupby("patient_id")["label"].transform("nunique") > 1
    entries: list[Entry] = []
    for _, row in table[~both].iterrows():
        paths = [folder / row[name] for name in ("filename_hr", "filename_lr") if row.get(name)]
        path = next((each for each in paths if each.with_suffix(".hea").is_file()), paths[-1])
        entries.append((_described(row, int(row["label"])), partial(_wfdb, path)))
    return _read(folder, entries)


def read_arrays(folder: Path) -> Iterator[Recording]:
    """Yield recordings that are stored in one array.

    The folder contains two files:

    - one ``.npz`` file with ``x``, shape (recording, sample, lead), ``ecg_id``, and optionally ``rate`` in samples per
      second (default 100)
    - ``labels.csv`` with columns ecg_id, patient_id, label (NORM or LBBB) and strat_fold, and optionally age, device
      and form
    """
    table = _table(folder / "labels.csv", "ecg_id", "patient_id", "label", "strat_fold")
    files = sorted(folder.glob("*.npz"))
    if len(files) != 1:
        raise UserError(f"Expected one .npz file in {folder}, found {len(files)}.")
    try:
        with np.load(files[0]) as content:
            signals, names = content["x"], content["ecg_id"].astype(str).tolist()
            rate = float(content["rate"]) if "rate" in content else ARRAYS_RATE
    except (OSError, KeyError, ValueError) as error:
        raise UserError(f"Expected arrays x and ecg_id in {files[0]}, found another file: {error}.") from error
    places = {name: place for place, name in enumerate(names)}
    labels = {"NORM": 0, "LBBB": 1}

    def signal(name: str) -> tuple[np.ndarray, float, None]:
        return signals[places[name]].T, rate, None

    own = table[table["label"].isin(labels)]
    entries = [(_described(row, labels[row["label"]]), partial(signal, row["ecg_id"])) for _, row in own.iterrows()]
    return _read(folder, entries)


def _described(row: pd.Series, label: int) -> Recording:
    """Return the recording that a row with PTB-XL's columns describes, without its signal."""
    age = pd.to_numeric(row.get("age", ""), errors="coerce")
    return Recording(
        name=row["ecg_id"],
        patient=row["patient_id"].removesuffix(".0"),
        signal=NOTHING,
        rate=ARRAYS_RATE,
        label=label,
        fold=int(row["strat_fold"]),
        age=float(age) if age < OLDEST else 90.0 if age >= OLDEST else float("nan"),
        device=" ".join(str(row.get("device", "")).split()),
        form=str(row.get("form", "")),
    )


def _table(path: Path, *columns: str) -> pd.DataFrame:
    """Read a table as text, and refuse it if columns are missing."""
    try:
        found = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {path} as a table: {error}.") from error
    missing = [name for name in columns if name not in found]
    if missing:
        raise UserError(f"Expected columns {', '.join(columns)} in {path}, found no {', '.join(missing)}.")
    return found


def _read(folder: Path, entries: Sequence[Entry]) -> Iterator[Recording]:
    """Check that both labels are present, and return the recordings with their signals."""
    missing = [name for label, name in enumerate(LABELS) if not any(each.label == label for each, _ in entries)]
    if missing:
        raise UserError(f"Expected recordings of both kinds in {folder}, found none with label {' or '.join(missing)}.")
    return _signals(folder, entries)


def _signals(folder: Path, entries: Sequence[Entry]) -> Iterator[Recording]:
    wrong = []
    for described, read in entries:
        try:
            signal, rate, age = read()
            problem = _problem(signal)
        except Exception as error:  # noqa: BLE001  (readers of formats raise whatever a broken file leads them to)
            problem = str(error) or type(error).__name__
        if problem:
            wrong.append(f"{described.name} ({problem})")
            continue
        signal = np.ascontiguousarray(signal, dtype=np.float32)
        yield replace(described, signal=signal, rate=rate, age=described.age if age is None else age)
    if wrong:
        more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise UserError(
            f"Expected {len(entries)} recordings of {len(LEADS)} leads in {folder}, could not take "
            f"{', '.join(wrong[:MOST_NAMED])}{more}. Repair these files, or remove them from the folder's table."
        )


def _problem(signal: np.ndarray) -> str:
    """Return the problem with a signal, or an empty text."""
    if signal.ndim != 2 or len(signal) != len(LEADS):
        return f"found shape {signal.shape}"
    if not np.isfinite(signal).all():
        return "found values that are not finite"
    return "" if signal.any() else "found only zeros"


def _matlab(path: Path) -> tuple[np.ndarray, float, float]:
    """Read signal, rate and age from a Matlab file of the challenge."""
    from scipy.io import loadmat

    if not path.is_file():
        raise FileNotFoundError("found no such file")
    found: Any = loadmat(path, squeeze_me=True, struct_as_record=False).get("ECG")
    if found is None:
        raise KeyError("found no struct ECG")
    age = pd.to_numeric(str(np.squeeze(getattr(found, "age", ""))), errors="coerce")
    return np.atleast_2d(found.data), CPSC_RATE, float(age)


def _wfdb(path: Path) -> tuple[np.ndarray, float, None]:
    """Read signal and rate of a WFDB recording, with the leads in the order of `LEADS`."""
    try:
        import wfdb
    except ImportError as error:
        raise UserError("Expected the package wfdb for this folder, found none. Install zetadp[ecg].") from error
    if not path.with_suffix(".hea").is_file():
        raise FileNotFoundError("found no such file")
    found = wfdb.rdrecord(str(path.with_suffix("")))
    names = [name.lower() for name in found.sig_name]
    return found.p_signal.T[[names.index(lead.lower()) for lead in LEADS]], float(found.fs), None
