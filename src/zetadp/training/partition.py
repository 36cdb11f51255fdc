"""Assignment of patients to nodes, and choice of the patients that are used for tests only.

The partition is public: it is a function of the declared numbers and a seed, or of the scanner that the cohort's table
names. One partition serves all runs on a cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from zetadp.account.register import Secret
from zetadp.base.randomness import Purpose, stream
from zetadp.base.tables import read_table, write_table
from zetadp.base.validation import Count, OneOf, Seed, UserError, check_fields, counted

SERVER = "server"


@dataclass(frozen=True)
class PartitionSettings:
    """Settings of the partition.

    Attributes
    ----------
    nodes
        Number of nodes (hospitals).
    by
        ``uniform``: training patients uniformly at random, in equal numbers as far as possible.
        ``scanner``: each node holds the patients of one scanner.
    sizes
        Training patients of each node, where hospitals differ in size; without it, equal numbers, or those of the
        scanners.
    validation_patients
        Test patients that each node holds for watching the training; they are never trained on, and the rest of the
        test patients, held at the server, give the final accuracy.
    seed
        Seed of the random spread; public.
    """

    nodes: Count = 11
    by: Annotated[str, OneOf(("uniform", "scanner"))] = "uniform"
    sizes: list[Count] | None = None
    validation_patients: Seed = 10
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check every setting."""
        check_fields(self)
        if self.sizes is None:
            return
        if self.by != "uniform":
            raise UserError(f"Expected no partition.sizes for partition.by: {self.by}, which sets them, found some.")
        if len(self.sizes) != self.nodes:
            raise UserError(
                f"Expected partition.sizes to hold a number of patients for each of the {self.nodes} nodes of "
                f"partition.nodes, found {len(self.sizes)} numbers."
            )

    @property
    def watched(self) -> int:
        """Number of test patients that all nodes hold for validation."""
        return self.nodes * self.validation_patients

    def check_watched(self, test_patients: int) -> None:
        """Refuse a number of test patients of whom none would be left to test; the error's key names the setting."""
        if self.watched >= test_patients:
            raise UserError(
                f"Expected more than {self.watched} test patients ({self.validation_patients} for validation at each "
                f"of {self.nodes} nodes, the rest at the server), found {test_patients}. Lower "
                "partition.validation_patients.",
                "validation_patients",
            )


def node_name(number: int) -> str:
    """Return the name of a node, counted from zero.

    Examples
    --------
    >>> node_name(0)
    'node-01'
    """
    return f"node-{number + 1:02d}"


def node_sizes(settings: PartitionSettings, train_patients: int, scanner_patients: Sequence[int] | None) -> list[int]:
    """Return the declared number of training patients of each node; a public constant, never counted from files."""
    if settings.by == "scanner":
        if scanner_patients is None or len(scanner_patients) != settings.nodes:
            number = "none" if scanner_patients is None else str(len(scanner_patients))
            raise UserError(
                f"Expected {settings.nodes} numbers in scanner_patients for partition.by: scanner, found {number}."
            )
        return list(scanner_patients)
    if settings.sizes is not None:
        if sum(settings.sizes) != train_patients:
            raise UserError(
                f"Expected partition.sizes to add up to the {train_patients} training patients of "
                f"cohort.train_patients, found {sum(settings.sizes)}."
            )
        return list(settings.sizes)
    if train_patients < settings.nodes:
        raise UserError(
            f"Expected at least as many training patients as nodes, found {train_patients} patients for "
            f"{settings.nodes} nodes. Lower partition.nodes or take a larger cohort."
        )
    return [len(part) for part in np.array_split(np.arange(train_patients), settings.nodes)]


def assign_patients(index: pd.DataFrame, settings: PartitionSettings, sizes: Sequence[int]) -> pd.DataFrame:
    """Return every patient's role and holder.

    Parameters
    ----------
    index
        Table with one row per record and columns ``patient``, ``part`` (``train`` or ``test``) and ``scanner``.
    settings
        Settings of the partition.
    sizes
        Declared number of training patients of each node.

    Returns
    -------
    Table with one row per record: ``patient``, ``record``; ``role``: ``train``, ``validation`` or ``test``; ``node``:
    name of the holder, ``server`` for test patients. All records of a patient have the same holder.

    Raises
    ------
    UserError
        If the cohort does not hold what the settings declare.
    """
    patients = index.drop_duplicates("patient").sort_values("patient", ignore_index=True)
    train, test = (patients[patients["part"] == part] for part in ("train", "test"))
    names = [node_name(number) for number in range(settings.nodes)]
    if len(train) != sum(sizes):
        raise UserError(f"Expected {counted(sum(sizes), 'training patient')}, as declared, found {len(train)}.")
    random = stream(settings.seed, Purpose.PARTITION)
    settings.check_watched(len(test))
    if settings.by == "scanner":
        by_scanner = _nodes_by_scanner(train, names, sizes)
        holders = train.set_index("patient")["scanner"].map(by_scanner)
        validation = _watched_by_scanner(test.iloc[random.permutation(len(test))], by_scanner, settings)
    else:
        holders = pd.Series(np.repeat(names, sizes)[random.permutation(len(train))], index=train["patient"])
        watched = random.permutation(test["patient"].to_numpy())[: settings.watched]
        validation = pd.Series(np.repeat(names, settings.validation_patients), index=watched)
    at_server = pd.Series(SERVER, index=np.setdiff1d(test["patient"], validation.index))
    parts = {"train": holders, "validation": validation, "test": at_server}
    table = pd.concat(
        [pd.DataFrame({"patient": p.index, "role": role, "node": p.to_numpy()}) for role, p in parts.items()]
    )
    return index[["patient", "record"]].merge(table, on="patient", validate="many_to_one")


def write_partition(*, table: Path, partition: Path, settings: dict[str, Any], sizes: list[int]) -> None:
    """Write the partition of the records in a table, with `PartitionSettings` as the configuration has them."""
    write_table(partition, assign_patients(read_table(table), PartitionSettings(**settings), sizes))


def read_partition(path: Path) -> pd.DataFrame:
    """Read a table that `write_partition` wrote: one row per record, identifiers as text."""
    return read_table(path, ("patient", "record", "role", "node"))


def training_data(table: Path, partition: Path, ledger: Path) -> str:
    """Return a keyed hash of the training data of a run: the content of each file, whose it is, and who holds it.

    Parameters
    ----------
    table, partition
        The cohort's index with the ``sha256`` of each record, and the table of who is where.
    ledger
        The run's ledger, which holds the hash. The secret next to it is the key, because a hash of private data is
        private. The name of the run is hashed too, so that nobody can see whether two runs had the same data.
    """
    contents = read_table(table, ("record", "sha256"))[["record", "sha256"]]
    rows = read_partition(partition).merge(contents, on="record", how="left")
    rows = rows.loc[rows["role"] == "train", ["record", "patient", "node", "sha256"]].sort_values("record")
    return Secret.of(ledger.parent).tag(f"training data of {ledger.stem}: {rows.to_csv(index=False)}")


def _nodes_by_scanner(train: pd.DataFrame, names: Sequence[str], sizes: Sequence[int]) -> dict[str, str]:
    scanners = sorted(train["scanner"].unique())
    sizes_found = [int((train["scanner"] == scanner).sum()) for scanner in scanners]
    if sizes_found != list(sizes):
        table = dict(zip(scanners, sizes_found, strict=True))
        raise UserError(f"Expected scanners with {list(sizes)} training patients, as declared, found {table}.")
    return dict(zip(scanners, names, strict=True))


def _watched_by_scanner(test: pd.DataFrame, by_scanner: dict[str, str], settings: PartitionSettings) -> pd.Series[str]:
    """Give each node test patients of its own scanner, so that its accuracy is that on its own physics."""
    watched = test[test["scanner"].isin(list(by_scanner))].groupby("scanner").head(settings.validation_patients)
    counts = watched["scanner"].value_counts()
    short = {scanner: int(counts.get(scanner, 0)) for scanner in by_scanner}
    short = {scanner: count for scanner, count in short.items() if count < settings.validation_patients}
    if short:
        raise UserError(
            f"Expected {settings.validation_patients} test patients for validation of every scanner, found {short}."
        )
    return watched.set_index("patient")["scanner"].map(by_scanner)
