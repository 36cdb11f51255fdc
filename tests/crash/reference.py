"""What every stage makes when nothing disturbs it, and folders in which a stage finds what it needs."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from checkouts import Checkout
from crash.processes import run
from crash.stages import Stage, call
from environments.declared import OF_OTHER_TASKS, RULES
from recorder.sitecustomize import PLACE

from zetadp.account.attempts import read_ledger
from zetadp.account.register import Register
from zetadp.base.tensors import load_tensors

ELSEWHERE = {"audit", "audit_membership", "fetch_cohort", "rehearse", "train_federated", *OF_OTHER_TASKS}
"""Rules not run here: minutes of attacks that keep nothing, with outputs written at the end as tables and figures
are; the rehearsal of trainings with noise from the operating system, which writes one line; the download, which
`test_stages_killed` kills; many processes, whose deaths `tests/hospitals` brings about; and those of other tasks,
which write by the functions of the stages that are killed."""
STAGES = sorted({*RULES} - ELSEWHERE)


def files_of(root: Path) -> set[str]:
    """Return all files below a folder, hidden and temporary ones too."""
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


class Reference:
    """All stages, run once by themselves with what the workflow gave them.

    Attributes
    ----------
    root
        The working directory of the run.
    stages
        The stages by their rules' names, in the order of the workflow.
    found, made
        For each stage, the files that it found and those that it made.
    """

    def __init__(self, recorded: Checkout, root: Path) -> None:
        self.root = root
        files = sorted((recorded.root / PLACE).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        self.stages = {path.stem: Stage.read(path) for path in files if path.stem in STAGES}
        self.found: dict[str, set[str]] = {}
        self.made: dict[str, set[str]] = {}
        for script, stage in self.stages.items():
            for name in {*stage.files()} - {*stage.declared}:
                if not (root / name).exists() and (recorded.root / name).exists():  # by a stage that is not killed
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(recorded.root / name, root / name)
            self.found[script] = files_of(root)
            done = run(call, stage.call(), cwd=root)
            assert done.status == 0, done.log
            self.made[script] = files_of(root) - self.found[script]
        self._states = {name: _state(root / name) for name in files_of(root)}

    def prepare(self, script: str, folder: Path) -> Path:
        """Put what a stage finds into a new folder, as links to the files here; return the folder."""
        folder.mkdir(parents=True)
        for name in self.found[script]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).hardlink_to(self.root / name)
        return folder

    def check_whole(self, script: str, folder: Path) -> None:
        """Check after a crash: each declared output is whole or absent, and none is there without all undeclared."""
        declared = self.stages[script].declared
        there = [name for name in declared if (folder / name).exists()]
        for name in [*there, *(self.made[script] - {*declared} if there else ())]:
            assert (folder / name).exists(), f"{there} without {name}"
            self.check_same(folder, name)
        self.check_inputs(script, folder)

    def check_inputs(self, script: str, folder: Path) -> None:
        """Check that a stage neither replaced nor changed what it found."""
        for name in self.found[script]:
            assert _state(folder / name) == self._states[name], f"{name} was an input"

    def check_finished(self, script: str, folder: Path) -> None:
        """Check after a run: what the stage makes is there, the same as here, and nothing beside it."""
        self.check_inputs(script, folder)
        assert files_of(folder) == self.found[script] | self.made[script]
        for name in self.made[script]:
            self.check_same(folder, name)

    def check_same(self, folder: Path, name: str) -> None:
        """Check that a file is byte-identical to the one here, or as equal as it can be."""
        path = Path(name)
        EQUAL.get(path.name, EQUAL.get(path.suffix, _same_bytes))(folder / name, self.root / name)


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _same_bytes(found: Path, expected: Path) -> None:
    assert found.read_bytes() == expected.read_bytes(), found


def _same_model(found: Path, expected: Path) -> None:
    """Every bit of the weights; the head of the ledger's chain knows of the resumption, and keys have no order."""
    (weights, content), (right, told) = load_tensors(found), load_tensors(expected)
    assert weights.keys() == right.keys()
    assert all(torch.equal(weights[key], right[key]) for key in right)
    assert content | {"ledger_head": None} == told | {"ledger_head": None}


def _same_history(found: Path, expected: Path) -> None:
    """All but how long it took."""
    table, right = (pd.read_csv(io.StringIO(path.read_text())) for path in (found, expected))
    pd.testing.assert_frame_equal(table.drop(columns="seconds"), right.drop(columns="seconds"))
    assert table["seconds"].is_monotonic_increasing


def _no_fewer_releases(found: Path, expected: Path) -> None:
    """Interruptions add lines to a ledger; what is accounted never becomes less, for the model and in all."""
    attempts, right = read_ledger(found), read_ledger(expected)
    assert Counter(attempts[-1].releases()) >= Counter(right[-1].releases())


def _same_ledgers_named(found: Path, expected: Path) -> None:
    """The registers name the same ledgers and as many records; heads differ by nonces, hashes by secrets."""
    named, right = (Register.read(path.parent) for path in (found, expected))
    assert set(named.last) == set(right.last)
    assert len(named.records) == len(right.records)


def _a_secret_of_its_own(found: Path, expected: Path) -> None:
    assert len(found.read_text()) == len(expected.read_text()) == 64


EQUAL: dict[str, Callable[[Path, Path], None]] = {
    ".safetensors": _same_model,
    "history.csv": _same_history,
    ".jsonl": _no_fewer_releases,
    "register": _same_ledgers_named,
    "secret": _a_secret_of_its_own,
}
"""How a file is compared, by its name or its suffix, where not byte by byte."""
