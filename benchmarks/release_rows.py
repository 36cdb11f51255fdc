"""Time a large release: 50,000 rows of 3,969 numbers with exact noise, written to disk before sending.

    python benchmarks/release_rows.py

The features are random, because the time does not depend on them. Prints one line and removes its files.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from zetadp.core.assembly import Assembly
from zetadp.core.messages import MessageStore
from zetadp.core.records import Node, Records
from zetadp.core.round import Site, do_round
from zetadp.privacy.ledger import Ledger
from zetadp.release.release import HOLDER, ReleaseSettings
from zetadp.report.provenance import machine


def main() -> None:
    """Time one release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, default=50_000)
    parser.add_argument("--components", type=int, default=3969)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    features = random.standard_normal((given.people, given.components), dtype=np.float32)
    labels = torch.from_numpy(random.integers(0, 10, given.people))
    plan = ReleaseSettings(1, 1e-5, people=given.people, classes=10).plan(real=True)
    records = Records(torch.from_numpy(features).to(torch.complex64)[:, None, None], labels)
    parts = Assembly.of(plan, records)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.jsonl") as ledger:
        ledger.start(parts.header())
        node = Node(parts.mechanism(HOLDER, 0, ledger), np.arange(given.people)[:, None].tolist())
        site = Site([node], records, ledger, MessageStore(Path(folder) / "kept", "x"), chunk=1 << 12)
        begun = time.monotonic()
        do_round(parts.phase, site, 0)
        seconds = time.monotonic() - begun
    rows, degree = given.people, plan.nodes[0].expected
    print(
        f"{rows} rows of {given.components} numbers, each of {degree:.0f} of {given.people} people on average: "
        f"{seconds:.0f} s on {torch.get_num_threads()} threads of {machine()}"
    )


if __name__ == "__main__":
    main()
