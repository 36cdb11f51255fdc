"""One call that releases features of people as noisy rows, on which anybody may train."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from zetadp.base.validation import UserError
from zetadp.front.folder import RunFolder
from zetadp.front.private import check_constants, check_numbers, check_population, records_of
from zetadp.front.promises import Statement, shown, spent_with, with_earlier
from zetadp.front.records import Records, id_text
from zetadp.privacy.book import note_people
from zetadp.privacy.register import Secret
from zetadp.rows.release import ReleaseSettings, release_features


def release(
    records: Records,
    *,
    file: Path | str,
    epsilon: float,
    delta: float,
    population: int,
    classes: int,
    rows: int | None = None,
    degree: float | None = None,
    active: float = 1.0,
    norm: float = 1.0,
    seed: int | None = None,
    account: Path | str | None = None,
    most_epsilon: float | None = None,
) -> Statement:
    """Release features of people as rows that mix several of them and have noise; anybody may train on the rows.

    If a release was interrupted, call this function again: it continues with the rows that were already drawn. A
    finished release is not repeated unless its ledger permits it (``zetadp permit``). A file of another name is another
    release of the same people, and counts beside the first; ``most_epsilon`` limits both together.

    Parameters
    ----------
    records
        One item for each person: features, shape (component,), from a method that has seen none of these people; and a
        class, a whole number from 0.
    file
        HDF5 file to write. Its name, without the ending, is the release's name in the account.
    epsilon, delta
        What the release may cost each person.
    population
        Number of people; a public constant that you declare.
    classes
        Number of classes; a public constant.
    rows, degree, active, norm
        Number of rows, expected number of people in a row, share of rows that are open to each class, and norm to which
        features are clipped (`zetadp.rows.release.ReleaseSettings`).
    seed, account, most_epsilon
        As in `zetadp.private`. By default the account is ``ledgers`` next to ``file``.

    Returns
    -------
    What may be said of the release, which the file contains too.

    Raises
    ------
    UserError
        If anything does not fit; the message names the argument. Nothing is released then.
    """
    records = records_of(records, None)
    check_population(records, population)
    people = records.units
    check_constants(epsilon, delta, people, people, seed, "")
    if epsilon == math.inf:
        raise UserError("epsilon: Expected a finite number, found inf: rows without noise are the people's features.")
    check_numbers(classes=classes, rows=rows, degree=degree, norm=norm, seed=seed, most_epsilon=most_epsilon)
    features = records.inputs
    if not isinstance(features, Tensor):
        features = features[torch.arange(len(features))]
    if features.ndim != 2 or len(features) != people:
        raise UserError(
            f"records: Expected one item of shape (component,) for each of {people} patients, found {len(features)} "
            f"items of shape {tuple(features.shape[1:])}. Take the mean of a patient's features."
        )
    place = RunFolder.of(Path(file).with_suffix(""), account)
    settings = ReleaseSettings(
        float(epsilon),
        float(delta),
        people,
        int(classes),
        None if rows is None else int(rows),
        None if degree is None else float(degree),
        active,
        float(norm),
        cap=most_epsilon,
        seed=int(seed or 0),
    )
    noise = "os" if seed is None else "seeded"
    if not place.ledger.exists():
        note_people(place.ledger, map(Secret.of(place.account).tag, map(id_text, records.ids)))
    plan = settings.plan(real=not features.is_complex(), noise=noise)
    together, before = spent_with(plan, place.ledger)
    earlier = "" if together is None else with_earlier(together, before)
    sys.stderr.write(f"{place.name}: releases at epsilon {shown(epsilon)}, delta {delta:g}{earlier}.\n")
    return Statement(
        release_features(
            features.numpy(), records.targets.numpy(), settings, ledger=place.ledger, file=Path(file), noise=noise
        )
    )
