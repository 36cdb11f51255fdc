"""Whole federations of real processes: SuperLink, server and nodes on the loopback interface, over TLS."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import warm
from federation.consortium import Consortium
from federation.namespace import alone_in_the_world
from federation.sites import OFTEN, TINY, make_plan, sums_plan
from training_builder import backbone, joined

from zetadp.base.tensors import load_tensors
from zetadp.core.checkpoint import RunFiles
from zetadp.core.plan import Plan
from zetadp.core.pretrained import BACKBONE, backbone_of, starting_weights, with_public
from zetadp.core.task import site_task_of
from zetadp.core.training import train
from zetadp.nn.models import NetworkSettings
from zetadp.nn.settings import CLASS_MEANS, DESCENT
from zetadp.privacy.ledger import read_ledger

HERE = Path(__file__).parent


def simulated(consortium: Consortium, plan: Plan, public: Path | None) -> dict[str, torch.Tensor]:
    """Train on the same folders by the engine of one process."""
    parts, units, first = [], [], 0
    used = backbone_of(plan, public)
    for node in plan.nodes:
        held = site_task_of(plan.task).site(
            consortium.images(node.name),
            plan,
            consortium.folder / "again",
            part="train",
            patients=node.population,
            backbone=used,
        )
        parts.append(held)
        units.append([[first + i for i in positions] for positions in held.units()])
        first += len(held.inputs)
    files = RunFiles(consortium.folder / "sim/ledger.jsonl", consortium.folder / "sim/checkpoint.safetensors")
    start = starting_weights(plan.network, used)
    trained = train(plan, joined(*parts), units, files, start=start, performance=OFTEN)
    return dict(trained.model.named_parameters())


HEAD = NetworkSettings("head", "features", components=2, start="public")
TUNED = replace(backbone().settings, start="public", trained="norms")
METHODS = [
    (3, 4, TINY, DESCENT, False),
    (11, 2, TINY, DESCENT, False),
    (2, 1, HEAD, CLASS_MEANS, False),
    (3, 2, TUNED, DESCENT, True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "rounds", "network", "estimator", "sums"), METHODS)
def test_the_federation_trains_to_the_model_of_the_simulation(nodes, rounds, network, estimator, sums, tmp_path):
    """With masked sums too, although the server adds up words that look random."""
    plan = (sums_plan if sums else make_plan)(nodes, rounds=rounds, network=network)
    plan, public = replace(plan, training=replace(plan.training, estimator=estimator)), None
    if network.start == "public":
        public = tmp_path / "backbone.safetensors"
        backbone().save(public)
        plan = with_public(plan, backbone())
    with Consortium(tmp_path, plan, backbone=public, python=warm.python()) as consortium:
        consortium.start_nodes()
        server = consortium.training(give_up_seconds=200.0)
        consortium.run(server)
        processes = [consortium._running[name].pid for name in consortium.names]
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    weights, content = load_tensors(server.model)
    expected = simulated(consortium, plan, public)
    weights = {name: value for name, value in weights.items() if not name.startswith(BACKBONE)}
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(weights[name], value.detach()), name

    attempt = read_ledger(server.ledger)[-1]
    assert content["ledger_head"] in attempt.heads
    assert len(attempt.releases()) == nodes * rounds
    assert pd.read_csv(server.history)["round"].iloc[-1] == rounds
    assert not server.checkpoint.exists()
    for name in consortium.names:
        assert len(consortium.own_attempt(name).releases()) == rounds


@pytest.mark.slow
def test_no_other_host_is_called(tmp_path):
    """In a network of its own, where every address in the world leads to a trap, nothing goes into the trap."""
    command = [*alone_in_the_world(), sys.executable, str(HERE / "offline.py"), str(tmp_path)]
    clean = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=clean)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["probes"] == {"web": 1, "names": 1}
    assert found["calls"] == {"web": 0, "names": 0}
    assert np.isfinite(found["norm"])
