"""Measure the costs of masked sums for a hospital and the server in a round: processor time of one thread, and bytes.

A hospital checks the signed values of all members, and adds a stream for each other member to its message. Its noise is
the same work with and without masks. The server adds messages into one buffer.

    python -m benchmarks.sums
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction

import pandas as pd
import torch
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.growth import RESULTS
from benchmarks.step import declared
from zetadp.accounting.threat import MASKED_SUMS, Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.storage import write_text
from zetadp.hospitals.masks import Masking, Place, Try, fresh_value
from zetadp.hospitals.protocol import decode, encode
from zetadp.hospitals.roster import CURVE, Member, Roster
from zetadp.mechanism.exact import rounded_normal
from zetadp.nn.settings import NetworkSettings
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.settings import TrainingSettings

HOSPITALS, NUMBERS, TURNS = (3, 11, 50), (520, 187_272), 9
SCALE = Fraction(1 << 20)


def measure_round(hospitals: int, numbers: int) -> dict[str, float]:
    """Return the costs of one round with messages of this many numbers, times in milliseconds."""
    nodes = tuple(NodeConstants(f"node-{number}", 44, 44.0) for number in range(hospitals))
    training = (NetworkSettings("linear"), TrainingSettings(20))
    plan = Plan(RunName("linear", "sums", Target(math.inf), 0), *training, nodes, threat=MASKED_SUMS, sums=Sums())
    keys = {node.name: (ec.generate_private_key(CURVE), ec.generate_private_key(CURVE)) for node in nodes}
    roster = Roster(plan, tuple(Member.made(plan, name, *member_keys) for name, member_keys in keys.items()))
    position = Place("training", 0)
    values = tuple(fresh_value(roster, name, member_keys[1], position) for name, member_keys in keys.items())
    mask = Masking(Try(roster, position, values), nodes[0].name, keys[nodes[0].name][0], values[0], "weights")
    message, total = torch.from_numpy(rounded_normal(numbers, SCALE)), torch.zeros(numbers, dtype=torch.int64)
    sent = encode(mask(message))
    times: dict[str, Callable[[], object]] = {
        "check_values_ms": lambda: Try(roster, position, values),
        "masks_ms": lambda: mask(message),
        "noise_ms": lambda: rounded_normal(numbers, SCALE),
        "add_at_server_ms": lambda: total.add_(decode(sent, numbers, torch.int64)),
    }
    sizes = {"bytes": len(sent), "bytes_with_local_noise": 4 * numbers, "buffer_at_server_bytes": total.nbytes}
    return (
        {"hospitals": hospitals, "numbers": numbers}
        | {name: median_milliseconds(action) for name, action in times.items()}
        | sizes
    )


def median_milliseconds(action: Callable[[], object]) -> float:
    """Return the median of `TURNS` of processor time, in milliseconds."""
    seconds = []
    for _ in range(TURNS):
        began = time.process_time()
        action()
        seconds.append(time.process_time() - began)
    return round(1000 * sorted(seconds)[TURNS // 2], 2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    table = pd.DataFrame(measure_round(hospitals, numbers) for hospitals in HOSPITALS for numbers in NUMBERS)
    print(table.to_string(index=False))
    write_text(RESULTS / "sums.csv", to_csv(table, origin(*declared())))
