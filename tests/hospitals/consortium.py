"""A federation of real processes with simulated patients, for tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Self

import warm
from hospitals import faulty
from hospitals.sites import write_hospital_folder

from zetadp.account.attempts import Attempt, read_ledger
from zetadp.base.runfolder import RunFolder
from zetadp.hospitals.launcher import LocalFederation
from zetadp.hospitals.settings import HospitalSettings, ServerSettings
from zetadp.training.checkpoint import RunFiles
from zetadp.training.plan import Plan
from zetadp.training.settings import Patience


class Consortium(LocalFederation):
    """A federation whose nodes can be spoiled, and of whose processes none may call another machine."""

    def __init__(self, folder: Path, plan: Plan, *, backbone: Path | None = None) -> None:
        # Many nodes that look often would keep the server busy with answering that there is nothing.
        super().__init__(folder, plan, idle_seconds=0.1 * max(2, len(plan.nodes)))
        self.command = [warm.python(), faulty.__file__]
        self.backbone, self.runs_begun = backbone, 0

    def __enter__(self) -> Self:
        for place, node in enumerate(self.plan.nodes):
            write_hospital_folder(self.images(node.name), node.population, place)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        assert not (self.folder / faulty.CALLS).exists()

    def images(self, name: str) -> Path:
        return self.folder / "images" / name

    def state(self, name: str) -> Path:
        return self.folder / "state" / name

    def settings(self, name: str, **changes: object) -> HospitalSettings:
        given = {"attempts": 1000, "answer_seconds": 0.0, "limit_seconds": 8.0, "simulation": True}
        given |= {"threads": 1, "chunk": 4, "backbone": self.backbone}
        given |= {"images": self.images(name), "state": self.state(name)}
        return self.hospital(name, **{**given, **changes})

    def start_nodes(self, *names: str) -> None:
        for name in names or self.names:
            self.start_node(self.settings(name))

    def spoil(self, name: str, *faults: str) -> None:
        """Give a node faults, of which each is that of one answer and the last that of all later ones."""
        self.state(name).mkdir(parents=True, exist_ok=True)
        (self.state(name) / "fault").write_text(" ".join(faults))

    def mend(self) -> None:
        for name in self.names:
            for file in ("fault", "released"):
                (self.state(name) / file).unlink(missing_ok=True)

    def forget(self) -> None:
        """Let no hospital know of earlier attempts, which would draw otherwise."""
        for name in self.names:
            for part in ("ledgers", "messages"):
                shutil.rmtree(self.state(name) / part, ignore_errors=True)

    def training(self, **patience: object) -> ServerSettings:
        """Return the settings of a new training."""
        self.runs_begun += 1
        return self.training_again(**patience)

    def training_again(self, **patience: object) -> ServerSettings:
        """Return the settings of the last training, to go on."""
        given = {"round_seconds": 20.0, "give_up_seconds": 60.0}
        return self.server(
            RunFolder(self.out),
            RunFiles(self.out / "live.jsonl", self.out / "checkpoint.safetensors"),
            backbone=self.backbone,
            evaluate_every=2,
            checkpoint_seconds=0.0,
            threads=1,
            patience=Patience(**{**given, **patience}),
        )

    @property
    def out(self) -> Path:
        return self.folder / f"out-{self.runs_begun}"

    def attempt(self) -> Attempt:
        """Return the server's attempt of the last training."""
        return read_ledger(self.out / "live.jsonl")[-1]

    def own_attempt(self, name: str) -> Attempt:
        """Return a node's own attempt of the last training; an empty one where it took no part."""
        path = self.state(name) / "ledgers" / f"{self.plan.label}.jsonl"
        if not path.exists():  # it was stopped before its first release
            return Attempt(self.plan.declaration())
        last = read_ledger(path)[-1]
        return last if last.declaration.federation == self.attempt().identity else Attempt(self.plan.declaration())
