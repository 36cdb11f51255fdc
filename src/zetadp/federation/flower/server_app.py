"""The server's side of Flower: one run of the coordinator, and the files that it leaves."""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from zetadp.cohort.decathlon import SEQUENCES
from zetadp.core.plan import Plan
from zetadp.core.settings import Performance
from zetadp.core.training import TrainingFiles
from zetadp.federation.flower.certificates import read_public_key
from zetadp.federation.flower.coordinator import Coordinator, Patience
from zetadp.federation.flower.grid_line import GridLine
from zetadp.federation.flower.settings import read_settings
from zetadp.federation.flower.site_folders import load_site
from zetadp.federation.node import Records
from zetadp.pretrained import save_model
from zetadp.privacy.account import Permission
from zetadp.publicstart import backbone_of, starting_weights
from zetadp.storage import write_json, written_whole
from zetadp.validation import UserError

if TYPE_CHECKING:
    from flwr.serverapp.grid import Grid as AnyGrid

    from zetadp.nn.backbone import Backbone

logger = logging.getLogger(__name__)

SETTINGS = "settings"
"""Key of the run's configuration that names the server's settings file."""


@dataclass(frozen=True)
class ServerSettings:
    """What the server decides for itself, in a file of its own.

    Attributes
    ----------
    plan
        The server's copy of the plan.
    keys
        For each node of the plan, the file of its public key in PEM.
    model, history, ledger
        Where the finished model, the training history and a sealed copy of the account go.
    ledger_file
        The live account. It outlives failed runs and must never be deleted.
    checkpoint
        Where an interrupted training goes on from; removed at the end.
    watched
        Folder in Decathlon layout with test patients of the server, looked at while training; null for none.
    watched_patients
        Declared number of its patients.
    cache
        Folder for the prepared images of the watched.
    backbone
        File of the public backbone, where the plan names one; null takes the one that comes with the package.
    evaluate_every, checkpoint_seconds
        Rounds between two looks at the watched patients; seconds between two checkpoints.
    threads
        Threads of PyTorch; null leaves the choice to it.
    patience
        What to do about nodes that do not answer.
    permission
        Whether the training may be begun from its first round again; null leaves that to the nodes.
    """

    plan: Path
    keys: dict[str, Path]
    model: Path
    history: Path
    ledger: Path
    ledger_file: Path
    checkpoint: Path
    watched: Path | None = None
    watched_patients: int = 0
    cache: Path | None = None
    backbone: Path | None = None
    evaluate_every: int = 20
    checkpoint_seconds: float = 30.0
    threads: int | None = None
    patience: Patience = field(default_factory=Patience)
    permission: Permission | None = None

    @classmethod
    def read(cls, path: Path) -> ServerSettings:
        """Read settings from a YAML or JSON file; paths in it are relative to its folder.

        Raises
        ------
        UserError
            If the file cannot be read or has a key too many or too few.
        """

        def build(content: dict[str, Any]) -> ServerSettings:
            for key in (
                "plan",
                "model",
                "history",
                "ledger",
                "ledger_file",
                "checkpoint",
                "watched",
                "cache",
                "backbone",
            ):
                if content.get(key) is not None:
                    content[key] = (path.parent / content[key]).resolve()
            content["keys"] = {name: (path.parent / key).resolve() for name, key in content["keys"].items()}
            permission = content.get("permission")
            parts = {
                "patience": Patience(**content.get("patience", {})),
                "permission": Permission(**permission) if permission else None,
            }
            return cls(**{**content, **parts})

        return read_settings(path, "a federation's server", build)

    def agreed(self) -> tuple[Plan, dict[str, bytes]]:
        """Return the plan and the public key of each of its nodes.

        Raises
        ------
        UserError
            If a file cannot be read, or plan and keys do not agree.
        """
        plan = Plan.read(self.plan)
        if set(self.keys) != {node.name for node in plan.nodes}:
            msg = f"Expected a key for each of {[node.name for node in plan.nodes]}, found {sorted(self.keys)}."
            raise UserError(msg)
        keys = {name: read_public_key(path) for name, path in self.keys.items()}
        if len({key.strip() for key in keys.values()}) < len(keys):
            msg = f"Expected a key of its own for each of {sorted(keys)}, found one key at several nodes."
            raise UserError(msg)
        return plan, keys

    def write(self, path: Path) -> None:
        """Write the settings as JSON, with absolute paths."""
        write_json(path, asdict(self))


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the settings describe; whatever goes wrong fails the run."""
    run(grid, ServerSettings.read(Path(str(context.run_config[SETTINGS]))))


def run(grid: AnyGrid, settings: ServerSettings) -> None:
    """Train over a grid, then write the model, its history and a sealed copy of the account."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    plan, keys = settings.agreed()
    patience = settings.patience
    lifetime = patience.give_up_seconds if patience.missing == "wait" else 2 * patience.round_seconds
    backbone = backbone_of(plan, settings.backbone)
    coordinator = Coordinator(
        plan,
        patience,
        GridLine(grid, keys, lifetime),
        _watched(settings, plan, backbone),
        TrainingFiles(settings.ledger_file, settings.checkpoint, settings.permission),
        start=starting_weights(plan.network, backbone),
        performance=Performance(settings.evaluate_every, settings.checkpoint_seconds),
    )
    model = coordinator.run()
    head = coordinator.ledger_head
    save_model(settings.model, model, plan, sequences=SEQUENCES, ledger_head=head, backbone=backbone)
    with written_whole(settings.history) as temporary:
        coordinator.history.astype({"round": int}).to_csv(temporary, index=False)
    with written_whole(settings.ledger) as temporary:
        shutil.copyfile(settings.ledger_file, temporary)
    settings.checkpoint.unlink(missing_ok=True)


def _watched(settings: ServerSettings, plan: Plan, backbone: Backbone | None) -> Records:
    """Return the images of the patients that the server watches; of none where it has none."""
    if settings.watched is None:
        labels = torch.arange(len(SEQUENCES)).repeat_interleave(plan.task["slices"])
        side = plan.task["size"]
        shape = (1, backbone.components) if backbone is not None and plan.network.domain == "features" else (side, side)
        return Records(torch.empty(0, len(labels), *shape), labels)
    cache = settings.cache or settings.checkpoint.parent / "watched"
    found = load_site(settings.watched, plan, cache, part="test", patients=settings.watched_patients, backbone=backbone)
    return found[0]
