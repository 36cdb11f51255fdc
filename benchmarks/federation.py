# ruff: noqa: E402  (the tests, whose builders it uses, are found first)
"""Measure the overhead of a federation's round: its time beyond the nodes' own computing, and its bytes.

A node's own computing is drawing patients, choosing and gathering images, clipped gradients and noise. The rest of a
round is overhead: ledgers and their syncs to disk, hashes, stored messages, encoding, transport, waiting, averaging and
the optimiser. Three engines compute the same rounds:

- the simulation, in one process
- coordinator and hospitals in one process, without transport
- a federation of real processes, over TLS on the loopback interface

    python benchmarks/federation.py
    python benchmarks/federation.py --deployments 2 3 11 --rounds 10
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

# In the place of this folder, in which this very file would hide the package of that name.
sys.path[0] = str(Path(__file__).parents[1] / "tests")

from federation.consortium import Consortium
from federation.sites import SLICES, DirectLine, assembly, make_hospital, make_plan, random_records
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import zetadp.core.round as rounds
from zetadp.core.plan import UPDATES
from zetadp.core.records import Node, Records, items_of
from zetadp.core.settings import Performance
from zetadp.core.training import TrainingFiles
from zetadp.federation.flower.coordinator import Coordinator
from zetadp.federation.flower.protocol import Answer, Request, decode, encode, pack_reply, pack_request
from zetadp.federation.flower.settings import Patience
from zetadp.mri.decathlon import SEQUENCES
from zetadp.nn.models import NetworkSettings
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import SampledGaussian

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flwr.app import RecordDict

    from zetadp.core.plan import Plan

NETWORK = NetworkSettings(widths=(16, 32, 64), convolutions=1, head="pooled", groups=8)
LARGE = 2 * 93_412
OWN_COMPUTING = [
    (rounds, "clipped_sums"),
    (rounds, "choose_items"),
    (rounds, "gather"),
    (SampledGaussian, "draw"),
    (SampledGaussian, "_privatised"),
]


@contextmanager
def own_computing() -> Iterator[list[float]]:
    """Add up the seconds that are spent in the nodes' own computing."""
    spent = [0.0]
    kept = [(owner, name, getattr(owner, name)) for owner, name in OWN_COMPUTING]

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            start = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent[0] += time.perf_counter() - start

        return call

    for owner, name, function in kept:
        setattr(owner, name, timed(function))
    try:
        yield spent
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def plan_of(nodes: int, rounds: int, network: NetworkSettings = NETWORK) -> Plan:
    """Return a plan of four patients a node."""
    plan = make_plan(nodes=nodes, rounds=rounds, patients=4)
    return replace(plan, network=network)


def simulated(plan: Plan, folder: Path) -> tuple[list[float], list[float]]:
    """Return the seconds of each round of the simulation, and of them the nodes' own computing."""
    parts = [random_records(node.population, place) for place, node in enumerate(plan.nodes)]
    records = Records.joined(*parts)
    assembled = assembly(plan)
    server = assembled.receiver()
    totals, computing = [], []
    with Ledger(folder / "simulation.jsonl") as ledger, own_computing() as spent:
        ledger.start({})
        nodes, first = [], 0
        for node in plan.nodes:
            mechanism = assembled.mechanism(node.name, plan.entropy(), ledger)
            own = items_of([(first + i,) for i in range(node.population)], len(SEQUENCES) * SLICES)
            nodes.append(Node(mechanism, own))
            first += node.population
        site = rounds.Site(nodes, records, ledger, chunk=64)
        for number in range(plan.training.rounds):
            spent[0], begun = 0.0, time.perf_counter()
            messages, _ = rounds.do_round(assembled.phase, site, number)
            server.step(messages, number)
            totals.append(time.perf_counter() - begun)
            computing.append(spent[0])
    return totals, computing


def coordinated(plan: Plan, folder: Path) -> tuple[float, float]:
    """Return the seconds of a round of coordinator and hospitals without transport, and of them own computing."""
    line = DirectLine([make_hospital(plan, place, folder) for place in range(len(plan.nodes))])
    files = TrainingFiles(folder / "server/ledger.jsonl", folder / "server/checkpoint.safetensors")
    rarely = Performance(evaluate_every=plan.training.rounds, checkpoint_seconds=1e9)
    run = Coordinator(plan, Patience(poll_seconds=1e-9), line, random_records(1, 99), files, performance=rarely)
    with own_computing() as spent:
        begun = time.perf_counter()
        run.run()
        total = time.perf_counter() - begun
    return total / plan.training.rounds, spent[0] / plan.training.rounds


def deployed(nodes: int, rounds: int, folder: Path) -> tuple[float, float, float]:
    """Return the seconds from nothing to all nodes connected, of a round, and from the start of a run to its end."""
    begun = time.perf_counter()
    with Consortium(folder, make_plan(nodes=nodes, rounds=rounds)) as consortium:
        consortium.start_nodes()
        up = time.perf_counter() - begun
        settings = consortium.server(give_up_seconds=600.0)
        begun = time.perf_counter()
        run = consortium.federation.begin(settings)
        while not settings.ledger_file.exists() or '"round": 1' not in settings.ledger_file.read_text():
            time.sleep(0.02)
        first = time.perf_counter()
        consortium.federation.wait(run)
        total = time.perf_counter() - begun
        # From the first answer of the second round, since the first has Flower's start in it.
        each = (time.perf_counter() - first) / (rounds - 2)
    return up, each, total


def bytes_of_a_round(dimension: int) -> None:
    """Print the bytes that a node sends and receives in a round, and the bytes of the vector alone."""
    update = torch.randn(dimension, generator=torch.Generator().manual_seed(0))
    line = '{"chain":"' + 64 * "0" + '","entry":' + 250 * " " + "}"
    print(f"\nbytes of a node's round, {dimension} real numbers (objects as Flower stores and sends them):")
    request = Request(64 * "0", 64 * "0", 100, 99, 64 * "0", encode(update))
    sent = _size(pack_request(request))
    print(
        f"  to the node     float32  {sent:>9}  minimum {4 * dimension:>9}  {100 * sent / (4 * dimension) - 100:+.2f} %"
    )
    for form in UPDATES:
        content = encode(update, form)
        sent = _size(pack_reply(Answer("node-01", 64 * "0", 100, content, [line, line])))
        error = float((decode(content, dimension, form) - update).norm() / update.norm())
        print(
            f"  from the node   {form:<7}  {sent:>9}  vector  {len(content):>9}  "
            f"{100 * sent / len(content) - 100:+.2f} %"
            f"   rounding {error:.1e} of the update's norm"
        )


def _size(content: RecordDict) -> int:
    return sum(len(each.deflate()) for each in get_all_nested_objects(content).values())


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="rounds of a deployment, three or more (%(default)s)")
    parser.add_argument("--deployments", type=int, nargs="*", default=[2], help="numbers of nodes (%(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for nodes in (3, 11):
            totals, computing = simulated(plan_of(nodes, 60), folder / f"s{nodes}")
            over = [1000 * (total - own) for total, own in zip(totals, computing, strict=True)]
            print(
                f"simulation, {nodes:>2} nodes: {median(over):.2f} ms overhead a round (median of {len(over)}; "
                f"own computing {1000 * median(computing):.0f} ms)"
            )
            total, own = coordinated(plan_of(nodes, 40), folder / f"c{nodes}")
            print(f"coordinator and hospitals in one process, {nodes:>2} nodes: {1000 * (total - own):.1f} ms a round")
        bytes_of_a_round(LARGE)
        print()
        for nodes in given.deployments:
            up, each, total = deployed(nodes, given.rounds, folder / f"d{nodes}")
            print(
                f"deployment over TLS, {nodes:>2} nodes: up in {up:.1f} s, {each:.2f} s a round; "
                f"{given.rounds} rounds from start to end {total:.1f} s"
            )


if __name__ == "__main__":
    main()
