"""The folder of a run: the names of its files, its path in an experiment, and the way to its live ledger."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from zetadp.base.storage import content_hash, read_json, write_json
from zetadp.base.validation import UserError

RUN_PATH = "runs/{network}/{arm}/eps-{epsilon}/seed-{seed}"
"""Path of a run of the pipeline in the folder of its experiment."""
_NAMED = re.compile(r".*/(?P<network>[^/]+)/(?P<arm>[^/]+)/eps-(?P<epsilon>[^/]+)/seed-(?P<seed>\d+)")


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
    def run_name(self) -> dict[str, str]:
        """Network, arm, epsilon and seed in the path of a run of the pipeline; empty for other folders."""
        match = _NAMED.fullmatch(self.path.resolve().as_posix())
        return match.groupdict() if match else {}

    @property
    def experiment(self) -> Path | None:
        """Folder of the experiment of a run of the pipeline; None for other folders."""
        folder = self.path.resolve()
        return folder.parents[4] if self.run_name and folder.parents[3].name == "runs" else None

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
