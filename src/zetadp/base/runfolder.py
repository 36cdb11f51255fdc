"""The name of a run, and its folder: the names of its files, its path in an experiment, the way to its live ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from zetadp.base.epsilon import Target
from zetadp.base.names import checked_name
from zetadp.base.storage import content_hash, read_json, write_json
from zetadp.base.validation import Seed, UserError, check_fields

RUN_PATH = "runs/{network}/{arm}/eps-{epsilon}/seed-{seed}"
"""Path of a run of the pipeline in the folder of its experiment."""
_NAMED = re.compile(r".*/(?P<network>[^/]+)/(?P<arm>[^/]+)/eps-(?P<epsilon>[^/]+)/seed-(?P<seed>\d+)")


@dataclass(frozen=True, order=True)
class RunName:
    """Name of a run within an experiment.

    Attributes
    ----------
    network, arm
        Names of sections of the configuration.
    target
        What the run may cost one unit.
    seed
        Seed of the starting weights and, with all that defines the run, of sampling and noise.
    """

    network: str
    arm: str
    target: Target
    seed: Seed

    def __post_init__(self) -> None:
        """Check the name: parts of it become names of files and are printed."""
        for part in ("network", "arm"):
            checked_name(getattr(self, part), f"the run's {part}")
        check_fields(self)

    def __str__(self) -> str:
        return f"{self.network} {self.arm} eps-{self.target} seed-{self.seed}"

    @property
    def label(self) -> str:
        """The name in file names."""
        return str(self).replace(" ", "-")

    @property
    def folder(self) -> str:
        """Path of the run's folder in that of its experiment."""
        return RUN_PATH.format(**self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the name as plans, ledgers and results hold it, and as wildcards of the workflow."""
        return {"network": self.network, "arm": self.arm, "epsilon": str(self.target), "seed": self.seed}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a name that `to_json` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError, UserError
            If a key is missing or unknown, or a value is not one that `to_json` writes.
        """
        fields = dict(content)
        return cls(target=Target.named(fields.pop("epsilon")), **fields)

    @classmethod
    def of_texts(cls, *, network: str, arm: str, epsilon: str, seed: str) -> Self:
        """Return the name whose parts a path or wildcards hold; raise `UserError` for another epsilon or name."""
        return cls(network, arm, Target.named(epsilon), int(seed))


class _File:
    """A file of the folder, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, kind: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run, of the pipeline or of the library. Not every run has every file.

    Attributes
    ----------
    path
        The folder.
    model, plan, ledger, history
        What training writes: the model, the plan, a sealed copy of the ledger, and a row for each round.
    privacy, text
        The privacy statement as JSON, and in words.
    predictions, metrics, card
        Predictions on test patients, their metrics, and the model's card.
    seal
        The hashes of these files, without the history.
    identity
        What a run of the library is. Its key ``ledger`` has the way from the folder to the live ledger.
    start, checkpoint
        Starting weights of a run of the library, and the checkpoint of one that was interrupted.
    risk, picture, release
        The page on what the run may reveal, its picture, and released rows.
    """

    path: Path

    model = _File("model.safetensors")
    plan = _File("plan.json")
    ledger = _File("ledger.jsonl")
    history = _File("history.csv")
    privacy = _File("privacy.json")
    text = _File("privacy.txt")
    predictions = _File("predictions.csv")
    metrics = _File("metrics.json")
    card = _File("MODEL_CARD.md")
    seal = _File("seal.json")
    identity = _File("run.json")
    start = _File("start.safetensors")
    checkpoint = _File("checkpoint")
    risk = _File("risk.html")
    picture = _File("risk.svg")
    release = _File("release.h5")

    @property
    def sealed(self) -> list[Path]:
        """The files that every seal names."""
        return [self.model, self.ledger, self.plan, self.privacy, self.text]

    def write_seal(self) -> None:
        """Write the hashes of a finished run's files."""
        files = (self.model, self.ledger, self.plan, self.predictions, self.metrics, self.privacy, self.text, self.card)
        hashes = {file.name: content_hash(file) for file in files if file in self.sealed or file.exists()}
        write_json(self.seal, {"format": 1, "files": hashes})

    @property
    def run_name(self) -> RunName | None:
        """The name of a run of the pipeline, which its path holds; None for other folders.

        Raises
        ------
        UserError
            If a part of the path cannot name a run.
        """
        match = _NAMED.fullmatch(self.path.resolve().as_posix())
        if match is None:
            return None
        return RunName.of_texts(**match.groupdict())

    @property
    def experiment(self) -> Path | None:
        """Folder of the experiment of a run of the pipeline; None for other folders."""
        folder = self.path.resolve()
        in_runs = len(folder.parents) > 4 and folder.parents[3].name == "runs"
        return folder.parents[4] if in_runs and self.run_name else None

    @property
    def live_ledger(self) -> Path | None:
        """The ledger that a run of the library names as its own; None for other folders."""
        try:
            return (self.path / str(read_json(self.identity)["ledger"])).resolve()
        except (UserError, OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def account(self) -> Path | None:
        """Folder of the live ledgers of the run's patients; None if it is not where it was.

        A run of the library stores the way to its ledger. The pipeline has ``ledgers/COHORT`` in a folder above the
        run.
        """
        if (live := self.live_ledger) is not None:
            return live.parent if live.parent.is_dir() else None
        try:
            cohort = read_json(self.plan)["cohort"]
        except (UserError, OSError, ValueError, KeyError, TypeError):
            return None
        folders = (parent / "ledgers" / str(cohort) for parent in self.path.resolve().parents)
        return next((folder for folder in folders if cohort and folder.is_dir()), None)
