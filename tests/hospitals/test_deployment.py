"""Whole federations of real processes: SuperLink, server and nodes on the loopback interface, over TLS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from hospitals import faulty
from hospitals.consortium import Consortium
from hospitals.sites import OFTEN, TINY, make_plan, sums_plan
from training_builder import backbone, joined

from zetadp.account.attempts import read_ledger
from zetadp.base.tensors import load_tensors
from zetadp.cli import main
from zetadp.nn.models import NetworkSettings
from zetadp.nn.settings import CLASS_MEANS, DESCENT
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.plan import Plan
from zetadp.training.pretrained import BACKBONE, backbone_of, starting_weights, with_public
from zetadp.training.task import site_task_of


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
    trained = train(LocalHolders(plan, joined(*parts), units, start=start, performance=OFTEN), files)
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
    with Consortium(tmp_path, plan, backbone=public) as consortium:
        consortium.start_nodes()
        server, said = consortium.training(give_up_seconds=200.0), []
        consortium.run(server, said.append)
        processes = [consortium._running[name] for name in consortium.names]
        consortium.stop(*consortium.names, patience=20.0)
    assert [process.returncode for process in processes] == [0] * nodes
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
    assert f"connected nodes: {', '.join(consortium.names)}; not connected: none" in said
    assert f"round {rounds} of {rounds} is done; epsilon spent so far " in "\n".join(said)
    for name in consortium.names:
        assert consortium.own_attempt(name).releases() == [plan.event(name, number) for number in range(rounds)]
        assert f" INFO {name}: round {rounds} of {rounds} is recorded" in consortium.log(name).read_text()
        # What the server prints at its end is what the hospital's own ledger ends with.
        noted = re.findall(f"last line of the ledger of {name}: (.*)", "\n".join(said))
        ledger = f"{consortium.state(name)}/ledgers/{plan.label}.jsonl"
        assert main(["verify", ledger, "--key", str(consortium.credentials.node(name)[0]), "--head", *noted]) == 0


def test_a_call_of_another_machine_is_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    for arguments in ((None, ("127.0.0.1", 1)), (None, b"a file"), (None, ("192.0.2.7", 443))):
        faulty.note_calls("socket.connect", arguments)
    faulty.note_calls("socket.getaddrinfo", ("flower.ai", 443))
    assert (tmp_path / faulty.CALLS).read_text() == "socket.connect 192.0.2.7\nsocket.getaddrinfo flower.ai\n"


WITHOUT_A_ROUTE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from hospitals.consortium import Consortium
from hospitals.sites import make_plan
with Consortium(Path(sys.argv[1]), make_plan(nodes=2, rounds=2)) as two:
    two.start_nodes()
    two.run(two.training())
"""


@pytest.mark.slow
def test_a_federation_trains_in_a_network_without_a_route_and_calls_nobody(tmp_path):
    # Debian keeps programs of administrators where a user's path need not lead.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    unshare, ip = (shutil.which(program, path=path) for program in ("unshare", "ip"))
    if not (unshare and ip):
        reason = "no network namespace without unshare (util-linux) and ip (iproute2)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    alone = [unshare, "--map-root-user", "--net", "sh", "-ec", f'{ip} link set lo up && exec "$@"', "sh"]
    if (probe := subprocess.run([*alone, "true"], capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"no privileges for a network namespace: {probe.stderr.strip()}")
    command = [*alone, sys.executable, "-c", WITHOUT_A_ROUTE, str(tmp_path), *sys.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out-1/model.safetensors").exists()
