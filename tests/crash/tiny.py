"""A training of three rounds at two nodes, which crash tests run again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from torch import Tensor
from training_builder import TINY, Held, records, train_run

from zetadp.account.attempts import read_ledger
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.training.checkpoint import RunFiles
from zetadp.training.server import Server
from zetadp.training.settings import OptimiserSettings, Performance, TrainingSettings

ROUNDS, NODES, PATIENTS = 3, 2, 3


def train_tiny(folder: str, noise: str, checkpoint_seconds: float) -> None:
    """Train, finish as the workflow's script does, and keep what reached the server beside it."""
    here = Path(folder)
    here.mkdir(exist_ok=True)
    step = Server.step
    with (here / "sent.txt").open("a") as sent:

        def arrive(server: Server, messages: Tensor, number: int, missing: Collection[str]) -> None:
            """Note what reached the server: it stays there, whatever happens to the sender."""
            sent.write(f"{number} {messages.numpy().tobytes().hex()}\n")
            sent.flush()
            step(server, messages, number, missing)

        Server.step = arrive
        try:
            _train(here, noise, checkpoint_seconds)
        finally:
            Server.step = step


def train_each(folders: list[str], **settings: Any) -> None:
    """Train in several folders, one after the other, within one process."""
    for folder in folders:
        train_tiny(folder, **settings)


def _train(here: Path, noise: str, checkpoint_seconds: float) -> None:
    settings = TrainingSettings(
        rounds=ROUNDS,
        images_per_patient=4,
        optimiser=OptimiserSettings(0.02),
        noise=noise,
    )
    plans = [Held(f"node-{n}", [[n * PATIENTS + i] for i in range(PATIENTS)], PATIENTS, 2.0, 0.9) for n in range(NODES)]
    trained = train_run(
        RunName("complex", "federated", Target(8), 3),
        TINY,
        settings,
        plans,
        records(NODES * PATIENTS),
        records(2, seed=99),
        ledger_path=here / "ledgers/run.jsonl",
        checkpoint_path=here / "checkpoints/run.safetensors",
        performance=Performance(evaluate_every=2, checkpoint_seconds=checkpoint_seconds),
    )
    weights = {name: p.detach() for name, p in trained.model.named_parameters()}
    save_tensors(here / "model.safetensors", weights, {"ledger_head": trained.ledger_head})
    RunFiles(here / "ledgers/run.jsonl", here / "checkpoints/run.safetensors").finish()
    trained.history.drop(columns="seconds").to_csv(here / "history.csv", index=False)


def counted(folder: Path) -> Counter:
    """Return how often the ledger counts each round at each node, over all attempts, torn lines included."""
    attempts = read_ledger(folder / "ledgers/run.jsonl")
    return Counter((event.round, event.node) for attempt in attempts for event in attempt.releases())


def weights_of(folder: Path) -> dict:
    return load_tensors(folder / "model.safetensors")[0]
