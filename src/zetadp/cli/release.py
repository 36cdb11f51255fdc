"""The commands of released features: ``zetadp release`` and ``zetadp statement``."""

from __future__ import annotations

import argparse
from pathlib import Path

from zetadp.base.validation import UserError
from zetadp.cli.helping import command, count, delta, option, positive_number, probability


@command(
    "release",
    examples=(
        "release features.npz rows.h5 --people 60000 --classes 10 --epsilon 1 --delta 1e-5",
        "release features.npz rows.h5 --people 500 --classes 2 --epsilon 8 --delta 1e-4 --rows 200 --active 0.5",
        "release features.npz rows.h5 --people 500 --classes 2 --epsilon 2 --delta 1e-4 --cap 8",
    ),
    options=[
        option(
            "features",
            type=Path,
            help="NumPy file (.npz) with features (person, component) and labels (person,) from 0",
        ),
        option("file", type=Path, help="HDF5 file to write (.h5)"),
        option("--people", type=count, required=True, help="declared number of people"),
        option("--classes", type=count, required=True, help="number of classes"),
        option("--epsilon", type=positive_number, required=True, help="epsilon for each person, such as 1 or 8"),
        option(
            "--delta",
            type=delta,
            required=True,
            help="probability for which epsilon allows an exception, such as 1e-5; less than 1 / number of people",
        ),
        option("--rows", type=count, help="number of rows (default: about the number of people)"),
        option("--degree", type=positive_number, help="expected number of people in a row (default: the best one)"),
        option(
            "--active",
            type=probability,
            default=1.0,
            help="share of the rows that are open to each class; below 1, the file says which rows "
            "(default: %(default)s)",
        ),
        option(
            "--norm", type=positive_number, default=1.0, help="norm that features are clipped to (default: %(default)s)"
        ),
        option("--ledger", type=Path, help="ledger of the people (default: ledgers/NAME.jsonl next to the features)"),
        option(
            "--cap",
            type=positive_number,
            help="epsilon that the total of all ledgers in the folder of --ledger must not exceed, at this delta",
        ),
    ],
)
def release(given: argparse.Namespace) -> None:
    """Release features of people as noisy mixed rows that anybody may train on.

    Mix the features of people into rows, add exact noise from the operating system, and write the rows with their
    guarantee to a file. The release is first recorded in the ledger of these people, which lies next to their features,
    and can be made only once, whatever the output is called. To release the same people again, permit it (zetadp
    permit). With --cap, nothing is released if the total epsilon of all runs and releases of these people would exceed
    the cap: keep their ledgers in one folder.

    The features of a person must be computed from this person's data alone, by a model that was trained on none of
    these people.
    """
    import zlib
    from zipfile import BadZipFile

    import numpy as np

    from zetadp.privacy.wording import plain_text
    from zetadp.rows.release import ReleaseSettings, release_features

    try:
        with given.features.open("rb") as file, np.load(file) as content:
            features, labels = content["features"], content["labels"]
    except (OSError, EOFError, BadZipFile, zlib.error, KeyError, ValueError, TypeError) as error:
        raise UserError(
            f"Expected {given.features} to be a NumPy file (.npz) with features and labels: {error}."
        ) from error
    settings = ReleaseSettings(
        given.epsilon,
        given.delta,
        people=given.people,
        classes=given.classes,
        rows=given.rows,
        degree=given.degree,
        active=given.active,
        norm=given.norm,
        cohort=given.features.stem,
        cap=given.cap,
    )
    ledger = given.ledger or given.features.parent / "ledgers" / f"{given.features.stem}.jsonl"
    print(plain_text(release_features(features, labels, settings, ledger=ledger, file=given.file)), end="")


@command(
    "statement",
    examples=("statement rows.h5", "statement results/release/runs/rows/federated/eps-8/seed-0/release.h5"),
    options=[
        option("file", type=Path, help="HDF5 file of released rows (.h5)"),
    ],
)
def statement(given: argparse.Namespace) -> None:
    """Print the privacy statement in a file of released rows.

    Print the privacy statement that a file of released rows (.h5) contains.
    """
    from zetadp.privacy.wording import plain_text
    from zetadp.rows.file import read_statement

    print(plain_text(read_statement(given.file)), end="")
