"""A federation of real processes with simulated patients, for tests and for the benchmark."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Self
from unittest import mock

from federation.sites import write_hospital_folder

from zetadp.federation.flower.certificates import make_credentials
from zetadp.federation.flower.launcher import LocalFederation
from zetadp.federation.flower.participant import Participant, make_roster
from zetadp.federation.flower.processes import FORGE
from zetadp.federation.flower.settings import HospitalSettings, ServerSettings
from zetadp.federation.settings import Patience
from zetadp.privacy.ledger import Attempt, read_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from zetadp.core.plan import Plan


class Consortium:
    """Processes, folders and settings of a federation, whose forge is started by ``python``."""

    def __init__(
        self, folder: Path, plan: Plan, forge: str = FORGE, backbone: Path | None = None, python: str = sys.executable
    ) -> None:
        self.folder, self.plan, self.backbone, self.python = folder, plan, backbone, python
        self.names = [node.name for node in plan.nodes]
        plan.write(folder / "plan.json")
        self.credentials = make_credentials(folder / "keys", self.names)
        self.roster = make_roster(plan, self.credentials)
        # Many nodes that look often would keep the server busy with answering that there is nothing.
        idle = 0.1 * max(2, len(self.names))
        self.federation = LocalFederation(folder / "run", self.credentials, idle_seconds=idle, forge=forge)
        self.runs = 0

    def __enter__(self) -> Self:
        self.federation.__enter__()
        for place, node in enumerate(self.plan.nodes):
            write_hospital_folder(self.images(node.name), node.population, place)
        return self

    def __exit__(self, *error: object) -> None:
        self.federation.__exit__(*error)

    def images(self, name: str) -> Path:
        return self.folder / "images" / name

    def state(self, name: str) -> Path:
        return self.folder / "state" / name

    def settings(self, name: str, **changes: object) -> HospitalSettings:
        given = {"attempts": 1000, "answer_seconds": 0.0, "limit_seconds": 8.0, "simulation": True}
        given |= {"threads": 1, "chunk": 4, "backbone": self.backbone, "roster": self.roster}
        return HospitalSettings(
            name, self.folder / "plan.json", self.images(name), self.state(name), **{**given, **changes}
        )

    def start_nodes(self, *names: str) -> None:
        for name in names or self.names:
            Participant.read(self.settings(name), self.credentials.node(name)[1]).approve("a test")
            with mock.patch.object(sys, "executable", self.python):
                self.federation.start_node(self.settings(name))

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

    def server(self, **patience: object) -> ServerSettings:
        """Return the settings of a new training, or of the last one, to go on."""
        self.runs += 1
        return self.server_again(**patience)

    def server_again(self, **patience: object) -> ServerSettings:
        out = self.folder / f"out-{self.runs}"
        given = {"round_seconds": 20.0, "give_up_seconds": 60.0}
        return ServerSettings(
            plan=self.folder / "plan.json",
            keys={name: self.credentials.node(name)[0] for name in self.names},
            roster=self.roster,
            model=out / "model.safetensors",
            history=out / "history.csv",
            ledger=out / "ledger.jsonl",
            ledger_file=out / "live.jsonl",
            checkpoint=out / "checkpoint.safetensors",
            backbone=self.backbone,
            evaluate_every=2,
            checkpoint_seconds=0.0,
            threads=1,
            patience=Patience(**{**given, **patience}),
        )

    def account(self) -> Attempt:
        """Return the server's account of the last training."""
        return read_ledger(self.folder / f"out-{self.runs}" / "live.jsonl")[-1]

    def own_account(self, name: str) -> Attempt:
        """Return a node's own account of the last training; an empty one where it took no part."""
        path = self.state(name) / "ledgers" / f"{self.plan.label}.jsonl"
        if not path.exists():  # it was stopped before its first release
            return Attempt(header={})
        last = read_ledger(path)[-1]
        return last if last.header["federation"] == self.account().identity else Attempt(header={})
