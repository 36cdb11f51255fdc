"""The server of a federation: one run of the coordinator, and the files that it leaves."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from zetadp.base.storage import written_whole
from zetadp.core.checkpoint import RunFiles
from zetadp.core.pretrained import backbone_of, save_model, starting_weights
from zetadp.core.records import LabelledItems
from zetadp.core.settings import Performance
from zetadp.core.task import site_task_of
from zetadp.core.training import Trained
from zetadp.federation.flower.certificates import Credentials
from zetadp.federation.flower.coordinator import Coordinator
from zetadp.federation.flower.settings import ServerSettings
from zetadp.federation.flower.superlink import SuperLink
from zetadp.federation.flower.tries import SummingCoordinator
from zetadp.federation.masks import Roster
from zetadp.privacy.exposure import Series

if TYPE_CHECKING:
    from zetadp.core.plan import Plan
    from zetadp.nn.backbone import Backbone


def serve(settings: Path | str, credentials: Path | str, host: str, port: int) -> None:
    """Train with the nodes that connect, then write the model, its history and a sealed copy of its ledger.

    Parameters
    ----------
    settings
        The server's settings file.
    credentials
        Folder of the server's certificates and keys.
    host, port
        Where nodes reach the server.

    Raises
    ------
    UserError
        If the training ends without a model.
    """
    own, files = ServerSettings.read(Path(settings)), Credentials(Path(credentials))
    if own.threads:
        torch.set_num_threads(own.threads)
    plan, keys = own.agreed()
    patience = own.patience
    lifetime = patience.give_up_seconds if patience.missing == "wait" else 2 * patience.round_seconds
    backbone = backbone_of(plan, own.backbone)
    watched = _watched(own, plan, backbone)
    with SuperLink(files, host, port, keys, lifetime) as line:
        # A server of masked sums sees no single message.
        roster = Roster.named(own.roster, plan)
        kind = Coordinator if roster is None else partial(SummingCoordinator, roster=roster)
        coordinator = kind(
            plan,
            patience,
            line,
            watched,
            RunFiles(own.ledger_file, own.checkpoint, own.permission, own.cap, Series.named(own.series)),
            start=starting_weights(plan.network, backbone),
            performance=Performance(own.evaluate_every, own.checkpoint_seconds),
        )
        model = coordinator.run()
    trained = Trained(model, coordinator.state.history, coordinator.ledger_head, None, coordinator.receiver.released)
    save_model(own.model, trained, plan, inputs=watched.inputs.shape[-1], backbone=backbone)
    with written_whole(own.history) as temporary:
        coordinator.state.history.astype({"round": int}).to_csv(temporary, index=False)
    with written_whole(own.ledger) as temporary:
        shutil.copyfile(own.ledger_file, temporary)
    own.checkpoint.unlink(missing_ok=True)
    if isinstance(coordinator, SummingCoordinator):
        coordinator.note.unlink(missing_ok=True)


def _watched(settings: ServerSettings, plan: Plan, backbone: Backbone | None) -> LabelledItems:
    """Return the items of the patients that the server watches; none where it has none."""
    task = site_task_of(plan.task)
    if settings.watched is None:
        shape = task.input_shape(plan.network.domain, backbone)
        return LabelledItems(torch.empty(0, *shape), torch.empty(0, dtype=torch.int64), np.empty(0, dtype=np.int64))
    prepared, patients = settings.checkpoint.parent / "watched", settings.watched_patients
    return task.site(settings.watched, plan, prepared, part="test", patients=patients, backbone=backbone)
