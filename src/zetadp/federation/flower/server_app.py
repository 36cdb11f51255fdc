"""The server's side of Flower: one run of the coordinator, and the files that it leaves."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from zetadp.cohort.decathlon import SEQUENCES
from zetadp.core.settings import Performance
from zetadp.core.training import TrainingFiles
from zetadp.federation.flower.coordinator import Coordinator
from zetadp.federation.flower.grid_line import GridLine
from zetadp.federation.flower.settings import SETTINGS, ServerSettings
from zetadp.federation.flower.site_folders import load_site
from zetadp.federation.node import Records
from zetadp.pretrained import save_model
from zetadp.publicstart import backbone_of, starting_weights
from zetadp.storage import written_whole

if TYPE_CHECKING:
    from flwr.serverapp.grid import Grid as AnyGrid

    from zetadp.core.plan import Plan
    from zetadp.nn.backbone import Backbone

logger = logging.getLogger(__name__)

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
