"""Record and replay: with every release frozen, nothing else that a run leaves behind may depend on a patient.

A training is run on some patients, and again after one of them has changed, with the messages of the first run in place
of its own. The guarantee covers the messages. Whatever else differs, or makes the run stop, is a leak.
"""

from __future__ import annotations

import json
import logging

import pytest
import torch
from training_builder import TINY, Held, patients, plan_for, records

from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.mechanism.release import NodeMechanism
from zetadp.training.checkpoint import Checkpoint, RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.records import items_of
from zetadp.training.settings import OptimiserSettings, Performance, TrainingSettings

ROUNDS, ITEMS = 6, 4
NODES = [Held("north", [[0], [1], [2]], 3, 1.5, 0.7), Held("south", [[3], [4], [5]], 3, 1.5, 0.7)]
CHANGED = 4
"""The patient who changes."""


def of_another_person(inputs: torch.Tensor, targets: torch.Tensor) -> None:
    others, classes = patients(1, len(targets), seed=77)
    inputs[:], targets[:] = others[0], classes[0]


def not_a_number(inputs: torch.Tensor, _: torch.Tensor) -> None:
    inputs[:] = torch.nan


def huge(inputs: torch.Tensor, _: torch.Tensor) -> None:
    inputs *= 1e30


def empty(inputs: torch.Tensor, _: torch.Tensor) -> None:
    inputs[:] = 0


def one_class(_: torch.Tensor, targets: torch.Tensor) -> None:
    targets[:] = 0


CHANGES = {
    "another person": of_another_person,
    "NaN": not_a_number,
    "huge": huge,
    "zero": empty,
    "one class": one_class,
}


def leftovers(folder, noise, change, frozen, monkeypatch, caplog):
    """Train, with frozen messages if there are any; return the messages and everything else that the run shows."""
    data = records(6)
    if change is not None:
        own = slice(ITEMS * CHANGED, ITEMS * (CHANGED + 1))
        change(data.inputs[own], data.targets[own])
    settings = TrainingSettings(ROUNDS, ITEMS, OptimiserSettings(0.02), noise=noise)
    plan = plan_for(RunName("complex", "federated", Target(8), 3), TINY, settings, NODES)
    units = [items_of(node.patients, ITEMS) for node in NODES]
    released = {}

    def freezing(release):
        def frozen_release(self, draw, total, *, again=0):
            own = release(self, draw, total, again=again)
            # Nodes release side by side, so the order in which they come says nothing.
            which = draw.event.node, draw.event.round
            released[which] = own if frozen is None else frozen[which]
            return released[which]

        return frozen_release

    files = RunFiles(folder / "ledgers/run.jsonl", folder / "run.partial")
    checkpoints = []

    def look(_, __):
        found = Checkpoint.load(files.checkpoint, torch.device("cpu"))
        state = {name: value.tolist() for name, value in found.state.items()}
        checkpoints.append((found.round, state, found.history.drop(columns="seconds").to_json(), found.not_finite))

    caplog.clear()
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(NodeMechanism, "release", freezing(NodeMechanism.release))
        how = Performance(evaluate_every=2, checkpoint_seconds=0)
        watched = records(2, seed=99)
        holders = LocalHolders(plan, data, units, performance=how)
        result = train(holders, files, validation=watched, after_round=look)
    weights = {name: value.tolist() for name, value in result.model.named_parameters()}
    shown = {
        "weights": weights,
        "history": result.history.drop(columns="seconds").to_json(),
        "ledger": ledger(files.ledger),
        "checkpoints": checkpoints,
        "log": [] if noise == "seeded" else caplog.messages,
        "files": sorted((path.relative_to(folder).as_posix(), path.stat().st_size) for path in folder.rglob("*.*")),
    }
    return released, shown


OWN = {"chain", "nonce", "data", "register"}
"""Keys of a ledger that differ between any two runs: an attempt's random number, the chain of hashes that contains it,
the register's head, and the hash of the data that seeded draws note. The secret next to the ledger is their key."""


def ledger(path):
    """Return a ledger's lines without the keys in `OWN`."""

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items() if key not in OWN}
        return [plain(entry) for entry in value] if isinstance(value, list) else value

    return [plain(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("noise", ["seeded", "os"])
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_but_the_messages_depends_on_a_patient(tmp_path, monkeypatch, caplog, noise, change):
    # With noise from the operating system the draws of the two runs differ too, so nothing may depend on them either.
    recorded, before = leftovers(tmp_path / "before", noise, None, None, monkeypatch, caplog)
    replayed, after = leftovers(tmp_path / "after", noise, CHANGES[change], recorded, monkeypatch, caplog)
    assert len(recorded) == len(replayed) == ROUNDS * len(NODES)
    if noise == "seeded":
        # What only a simulation reports: how many gradients were not finite, and how long rounds took.
        for shown in (before, after):
            shown["checkpoints"] = [entry[:3] for entry in shown["checkpoints"]]
            shown["files"] = [name for name, _ in shown["files"]]
    for what in before:
        assert after[what] == before[what], what


def test_the_replay_sees_a_leak(tmp_path, monkeypatch, caplog):
    """Without frozen messages the weights do depend on the patient, so equal weights above mean something."""
    _, before = leftovers(tmp_path / "before", "seeded", None, None, monkeypatch, caplog)
    _, after = leftovers(tmp_path / "after", "seeded", of_another_person, None, monkeypatch, caplog)
    assert after["weights"] != before["weights"]
