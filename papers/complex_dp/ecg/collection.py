"""Turn the recordings of a cohort into inputs of networks, and check the cohort's patients.

Recordings are simulated, or read in three layouts: CPSC 2018, PTB-XL (WFDB), and arrays. Every reader yields those that
it can read, in millivolts. After the last one, it reports all others in one error. A recording is refused if its values
cannot be millivolts, if its limb leads break the equations that hold between them, or if its heart beats too slowly for
its rate of sampling.
"""

from __future__ import annotations

import ast
import hashlib
import re
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from papers.complex_dp.ecg.recordings import (
    FOLDS,
    LABELS,
    LEADS,
    MEDIAN_FROM,
    NOTHING,
    SLOWEST,
    USUAL_RATES,
    Recording,
    beginning,
    deviating_leads,
    fold_of,
    heart_rate,
    spectrum,
    usual_beat,
)
from papers.complex_dp.ecg.simulated import simulated_recordings
from zetadp.base.names import check_distinct
from zetadp.base.storage import Items
from zetadp.base.tables import check_contents, read_table, visible, write_cohort
from zetadp.base.validation import UserError, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    # A recording without its signal, and a function that reads signal and rate.
    Entry = tuple[Recording, Callable[[], tuple[np.ndarray, float]]]

AXES = ("recording", "channel", "row", "value")
"""Axes of the inputs of networks."""
CPSC_RATE = 500.0
CPSC_LABELS = {1: 0, 4: 1}
"""Labels of the challenge's table: 1 is normal, 4 is LBBB. Recordings with other labels are left out."""
PTBXL_LABELS = {"NORM": 0, "CLBBB": 1}
ARRAYS_RATE = 100.0
ARRAYS_LABELS = {"NORM": 0, "LBBB": 1}
MILLIVOLTS = {"mV": 1.0, "uV": 1e-3, "µV": 1e-3, "nV": 1e-6, "V": 1e3}
"""Units of WFDB, and how many millivolts each is."""
SPREADS = (0.02, 30.0)
"""Least and most millivolts over which the middle 98 % of a lead's values spread, in the median of the leads."""
RATES = (50.0, 10_000.0)
"""Least and most samples per second."""
UNKNOWN_AGES = ("", "n/a", "na", "nan", "none", "unknown")
"""How tables write, in capitals or not, that an age is not known."""
OLDEST = 120.0
"""Ages from this value on become 90 years: PTB-XL writes 300 for everybody over 89."""


def collected(recordings: Iterable[tuple[Recording, str]]) -> Items:
    """Return the inputs of networks from recordings, each with its part.

    Returns
    -------
    Arrays are ``signals`` (beginning of one lead in mV, float32, shape (recording, sample)), ``beats`` (usual beats in
    deviations of the lead, float32, shape (recording, lead, sample)) and ``labels`` (positions in
    `papers.complex_dp.ecg.recordings.LABELS`, float32, shape (recording,)). Names are patient, record, part (train or
    test), scanner, fold and age.
    """
    rows, labels, signals, beats = [], [], [], []
    for recording, part in recordings:
        signals.append(beginning(recording))
        beats.append(usual_beat(recording))
        labels.append(recording.label)
        rows.append((recording.patient, recording.name, part, recording.device, recording.fold, recording.age))
    names = pd.DataFrame(rows, columns=["patient", "record", "part", "scanner", "fold", "age"])
    arrays = {"signals": np.array(signals), "beats": np.array(beats), "labels": np.array(labels, dtype=np.float32)}
    return Items(arrays, names)


def write_collection(
    *,
    spectrum_file: Path,
    signal_file: Path,
    beats_file: Path,
    table: Path,
    folder: str | None,
    seed: int,
    sizes: dict[str, int],
) -> None:
    """Write spectra, signals and usual beats of a cohort, and its table with one row and one hash per recording.

    Parameters
    ----------
    spectrum_file, signal_file, beats_file, table
        Files that are written.
    folder
        Folder of recordings, or None for a simulation. The patients of the last of ten folds test. Where the files have
        no folds, a patient's fold follows from the name.
    seed
        Seed of the simulation.
    sizes
        Declared numbers of training and test patients.

    Raises
    ------
    UserError
        If recordings cannot be read or have no beats, if a name occurs twice, if a patient has both labels or is in two
        folds, or if the numbers of patients differ from the declared numbers.
    """
    items = collected(_simulated(seed, sizes) if folder is None else _divided(read_folder(Path(folder))))
    signals, beats, labels = items.arrays.values()
    source = folder or "the simulation"
    _check(items.names, labels, source, sizes)
    hashes = [hashlib.sha256(beat.tobytes()).hexdigest() for beat in beats]
    check_contents(items.names, hashes, source)
    write_cohort(table, items.names.assign(sha256=hashes), sizes, source)
    waves = signals[:, None, None]
    for path, values, axes, units in (
        (spectrum_file, spectrum(waves), AXES, "mV"),
        (signal_file, waves, AXES, "mV"),
        (beats_file, beats, ("recording", "lead", "sample"), "deviations of the lead"),
    ):
        Items({"values": values, "labels": labels}, items.names[["record"]]).write(path, axes, units)


def _simulated(seed: int, sizes: Mapping[str, int]) -> Iterator[tuple[Recording, str]]:
    """Yield simulated recordings. Each part is simulated separately, so that both have the same shares of labels."""
    for part, number in (("train", 0), ("test", sizes["train"])):
        for recording, _ in simulated_recordings(sizes[part], seed=seed, population="varied", first=number):
            yield recording, part


def _divided(recordings: Iterable[Recording]) -> Iterator[tuple[Recording, str]]:
    """Yield recordings with their folds and parts."""
    for recording in recordings:
        fold = recording.fold or fold_of(recording.patient)
        yield replace(recording, fold=fold), "test" if fold == FOLDS else "train"


def _check(table: pd.DataFrame, labels: np.ndarray, source: str, sizes: Mapping[str, int]) -> None:
    for called, values in {"label": labels, "fold": table["fold"]}.items():
        several = pd.Series(values).groupby(table["patient"].to_numpy()).nunique()
        if (several > 1).any():
            raise UserError(f"Expected one {called} per patient in {source}, found several for {several.idxmax()}.")
    for name in sizes:
        if len(set(labels[table["part"] == name])) < 2:
            raise UserError(f"Expected patients of both labels for cohort.{name}_patients, found only one label.")


def read_folder(folder: Path) -> Iterator[Recording]:
    """Read the normal and the LBBB recordings of a folder. The layout is found by the name of its table.

    Raises
    ------
    UserError
        If the folder has none of the known layouts, or has no recordings of one label, or if names of recordings look
        the same. Also after the last recording, if some recordings could not be read.
    """
    for name, (reader, columns) in LAYOUTS.items():
        if (folder / name).is_file():
            table = read_table(folder / name, columns)
            check_distinct(table[columns[0]], str(folder / name))
            entries = list(reader(folder, table))
            missing = [
                word
                for label, word in enumerate(LABELS)
                if not any(recording.label == label for recording, _ in entries)
            ]
            if missing:
                raise UserError(
                    f"Expected recordings of both kinds in {folder}, found none with label {' or '.join(missing)}."
                )
            return _signals(folder, entries)
    raise UserError(
        f"Expected one of {', '.join(LAYOUTS)} in {folder}, found none. papers/complex_dp/ecg.md lists the layouts."
    )


def _cpsc(folder: Path, table: pd.DataFrame) -> Iterator[Entry]:
    """Yield the recordings of the China Physiological Signal Challenge 2018 (Liu et al., doi:10.1166/jmihi.2018.2442).

    ``REFERENCE.csv`` has columns Recording and First_label to Third_label. Each recording is a file ``<Recording>.mat``
    with a struct ``ECG``, whose field ``data`` holds 12 leads at 500 Hz, in mV. Only the first label counts. This gives
    the 1125 recordings of the paper. The data set does not identify patients, so each recording counts as one patient.
    """
    first = pd.to_numeric(table["First_label"], errors="coerce")
    known = first.isin(CPSC_LABELS)
    for name, label in zip(table["Recording"][known], first[known], strict=True):
        described = Recording(name, name, NOTHING, CPSC_RATE, CPSC_LABELS[int(label)])
        yield described, partial(_matlab, folder / f"{name}.mat")


def _ptbxl(folder: Path, table: pd.DataFrame) -> Iterator[Entry]:
    """Yield the recordings of PTB-XL (Wagner et al. 2020, doi:10.1038/s41597-020-0495-6) with NORM or CLBBB.

    ``ptbxl_database.csv`` names the WFDB files of each recording. The file with 500 samples per second is used if it
    exists. Patients with recordings of both labels are left out.
    """
    codes = [_codes(*row) & set(PTBXL_LABELS) for row in table[["scp_codes", "ecg_id"]].itertuples(index=False)]
    table = table.assign(label=[PTBXL_LABELS[min(labels)] if len(labels) == 1 else -1 for labels in codes])
    table = table[table["label"] >= 0]
    both = table.groupby("patient_id")["label"].transform("nunique") > 1
    for _, row in table[~both].iterrows():
        paths = [folder / row[name] for name in ("filename_hr", "filename_lr") if row.get(name)]
        path = next((candidate for candidate in paths if candidate.with_suffix(".hea").is_file()), paths[-1])
        yield _described(row, int(row["label"])), partial(_wfdb, path)


def _arrays(folder: Path, table: pd.DataFrame) -> Iterator[Entry]:
    """Yield recordings that are stored in one array.

    The folder contains two files:

    - one ``.npz`` file with ``x``, shape (recording, sample, lead) in mV, ``ecg_id``, and optionally ``rate`` in
      samples per second (default 100)
    - ``labels.csv`` with columns ecg_id, patient_id, label (NORM or LBBB) and strat_fold, and optionally age, device
      and form
    """
    files = visible(folder, "*.npz")
    if len(files) != 1:
        raise UserError(f"Expected one .npz file in {folder}, found {len(files)}.")
    try:
        with files[0].open("rb") as file, np.load(file) as content:
            signals, names = content["x"], content["ecg_id"].astype(str)
            rate = float(content["rate"]) if "rate" in content else ARRAYS_RATE
    except (OSError, KeyError, ValueError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise UserError(
            f"Expected arrays x and ecg_id, and perhaps one number rate, in {files[0]}, found another or a damaged "
            f"file: {error}."
        ) from error
    if names.shape != (len(signals),) or len(set(names.tolist())) < len(names):
        raise UserError(
            f"Expected in {files[0]} another ecg_id for each of the {len(signals)} recordings of x, found "
            f"{len(set(names.flat))} of shape {names.shape}."
        )
    indices = {name: index for index, name in enumerate(names.tolist())}

    def signal(name: str) -> tuple[np.ndarray, float]:
        if name not in indices:
            raise UserError(f"not in {files[0].name}")
        return signals[indices[name]].T, rate

    for _, row in table[table["label"].isin(ARRAYS_LABELS)].iterrows():
        yield _described(row, ARRAYS_LABELS[row["label"]]), partial(signal, row["ecg_id"])


_COLUMNS = ("ecg_id", "patient_id", "strat_fold")
LAYOUTS: dict[str, tuple[Callable[[Path, pd.DataFrame], Iterator[Entry]], tuple[str, ...]]] = {
    "REFERENCE.csv": (_cpsc, ("Recording", "First_label")),
    "ptbxl_database.csv": (_ptbxl, (*_COLUMNS, "scp_codes", "filename_lr")),
    "labels.csv": (_arrays, (*_COLUMNS, "label")),
}
"""Table, reader, and columns of each layout. The first column names the recordings."""


def _described(row: pd.Series, label: int) -> Recording:
    """Return the recording that a row with PTB-XL's columns describes, without its signal."""
    age, fold = (pd.to_numeric(row.get(name, ""), errors="coerce") for name in ("age", "strat_fold"))
    written = str(row.get("age", "")).strip()
    if not age >= 0 and written.lower() not in UNKNOWN_AGES:
        raise UserError(
            f"Expected the age of recording {row['ecg_id']} in years, such as 65 or 65.5, found {written!r}. Correct "
            "it, or leave it empty."
        )
    if fold not in range(1, FOLDS + 1):
        raise UserError(
            f"Expected strat_fold of recording {row['ecg_id']} to be 1 to {FOLDS}, found {row['strat_fold']!r}."
        )
    return Recording(
        name=row["ecg_id"],
        patient=row["patient_id"].removesuffix(".0"),
        signal=NOTHING,
        rate=ARRAYS_RATE,
        label=label,
        fold=int(fold),
        age=float(age) if age < OLDEST else 90.0 if age >= OLDEST else float("nan"),
        device=" ".join(str(row.get("device", "")).split()),
        form=str(row.get("form", "")),
    )


def _codes(text: str, name: str) -> set[str]:
    """Return the names of the diagnoses that PTB-XL's table gives as a dictionary."""
    try:
        return set(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError) as error:
        raise UserError(
            f"Expected scp_codes of recording {name} to be a dictionary such as {{'NORM': 100.0}}, found {text!r}."
        ) from error


def _signals(folder: Path, entries: Sequence[Entry]) -> Iterator[Recording]:
    wrong, hearts = [], []
    for described, read in entries:
        try:
            signal, rate = read()
            problem = _problem(signal, rate)
            if not problem:
                hearts.append(heart_rate(signal, rate))
                problem = _slow(hearts[-1], rate)
        except Exception as error:  # noqa: BLE001  (readers of formats raise whatever a broken file leads them to)
            problem = str(error) or type(error).__name__
        if problem:
            wrong.append(f"{described.name}: {problem}")
            continue
        yield replace(described, signal=np.ascontiguousarray(signal, dtype=np.float32), rate=rate)
    known = [heart for heart in hearts if np.isfinite(heart)]
    if len(known) >= MEDIAN_FROM and not USUAL_RATES[0] <= float(np.median(known)) <= USUAL_RATES[1]:
        wrong.append(
            f"the whole folder: expected hearts that beat {USUAL_RATES[0]:g} to {USUAL_RATES[1]:g} times a minute in "
            f"the median, found {np.median(known):.0f}; the number of samples per second is wrong"
        )
    refuse(wrong, f"in {folder}; repair these recordings, or remove them from the folder's table")


def _problem(signal: np.ndarray, rate: float) -> str:
    """Return the problem with a signal, or an empty text."""
    if signal.ndim != 2 or len(signal) != len(LEADS) or signal.dtype.kind not in "iuf":
        return f"found {signal.dtype} of shape {signal.shape}"
    if not np.isfinite(signal).all():
        return "found values that are not finite"
    if not signal.any():
        return "found only zeros"
    if not RATES[0] <= rate <= RATES[1]:
        return f"found {rate:g} samples per second"
    # Quantiles, because a recording may begin with a spike, and the median, because electrodes may be off.
    low, high = np.quantile(signal, (0.01, 0.99), axis=1)
    spread = float(np.median(high - low))
    if not SPREADS[0] <= spread <= SPREADS[1]:
        return f"expected mV, found values that spread over {spread:.3g}, as in another unit"
    deviating = deviating_leads(signal)
    if deviating:
        return (
            f"expected the leads {', '.join(LEADS)}, found {', '.join(deviating)} other than III = II - I and aVR, aVL "
            "and aVF follow from I and II: the leads are in another order, or one has another unit"
        )
    return ""


def _slow(beats: float, rate: float) -> str:
    """Return the problem with the heartbeats per minute of a recording, or an empty text."""
    if beats >= SLOWEST or np.isnan(beats):
        return ""
    return (
        f"expected a heart that beats {SLOWEST:g} times a minute or more, found {beats:.0f} at {rate:g} samples per "
        "second, which is probably not the rate of the recording"
    )


def _matlab(path: Path) -> tuple[np.ndarray, float]:
    """Read signal and rate from a Matlab file of the challenge."""
    from scipy.io import loadmat

    if not path.is_file():
        raise FileNotFoundError("found no such file")
    struct: Any = loadmat(path, squeeze_me=True, struct_as_record=False).get("ECG")
    if struct is None:
        raise KeyError("found no struct ECG")
    return np.atleast_2d(struct.data), CPSC_RATE


def _wfdb(path: Path) -> tuple[np.ndarray, float]:
    """Read signal and rate of a WFDB recording, with the leads in the order of `LEADS`."""
    try:
        import wfdb
    except ImportError as error:
        raise UserError("Expected the package wfdb for this folder, found none. Install zetadp[ecg].") from error
    if not path.with_suffix(".hea").is_file():
        raise FileNotFoundError("found no such file")
    recording = wfdb.rdrecord(str(path.with_suffix("")), physical=False)
    _check_sums(recording)
    # wfdb replaces a gain of 0, which says that the scale is unknown, by 200.
    header = path.with_suffix(".hea").read_text(encoding="latin-1").splitlines()
    _, *leads = [line.split() for line in header if line.strip() and not line.startswith("#")]
    if not all(len(lead) > 2 and re.match(r"0*\.?0*[1-9]", lead[2]) for lead in leads):
        raise UserError("found no gain, so the scale is unknown")
    unknown = sorted(set(recording.units) - set(MILLIVOLTS))
    if unknown:
        raise UserError(f"expected units {', '.join(MILLIVOLTS)}, found {', '.join(unknown)}")
    signal = recording.dac().T * np.array([MILLIVOLTS[unit] for unit in recording.units])[:, None]
    names = [name.lower() for name in recording.sig_name]
    missing = [lead for lead in LEADS if names.count(lead.lower()) != 1]
    if missing:
        raise UserError(f"expected one lead {', '.join(missing)}, found {', '.join(recording.sig_name)}")
    return signal[[names.index(lead.lower()) for lead in LEADS]], float(recording.fs)


def _check_sums(recording: Any) -> None:  # noqa: ANN401  (wfdb is untyped)
    """Compare the checksums of a WFDB header with the samples, as wfdb does not; raise a `UserError` if they differ."""
    sums = [sum_ % 2**16 for sum_ in recording.calc_checksum()]
    declared = recording.checksum or [None] * len(sums)
    wrong = [
        name
        for name, frames, sum_, checksum in zip(
            recording.sig_name, recording.samps_per_frame, sums, declared, strict=True
        )
        # wfdb averages the samples of a frame, so their sum is not known then.
        if frames == 1 and checksum is not None and checksum % 2**16 != sum_
    ]
    if wrong:
        raise UserError(
            f"expected the samples that the header's checksums describe, found others in {', '.join(wrong)}: the file "
            "is damaged, or belongs to another recording"
        )
