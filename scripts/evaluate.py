"""Predict the pulse sequence of every image of the held-out patients, and summarise."""

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from zetadp.dataset import load_role, pick_device
from zetadp.evaluation import predict
from zetadp.federation.partition import read_partition
from zetadp.metrics import summarise
from zetadp.pretrained import load_model
from zetadp.provenance import environment
from zetadp.storage import write_json, written_whole
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(
    *,
    model: Path,
    images: list[Path],
    partition: Path,
    predictions: Path,
    metrics: Path,
    network: str,
    arm: str,
    epsilon: str,
    seed: str,
    device: str,
    tf32: bool,
) -> None:
    """Write predictions and metrics on the server's test patients, and the accuracy at each node's own.

    ``tf32`` tells whether a GPU was let round in training; here all is float32.
    """
    place = pick_device(device)
    finished = load_model(model, place)
    table = read_partition(partition)

    def predicted(role: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        stack, rows = load_role(images, table, role)
        inputs = finished.prepare(stack.values).to(place)
        return predict(finished.network, inputs, rows["patient"], stack.sequences), rows

    tested, _ = predicted("test")
    nodes = {}
    if (table["role"] == "validation").any():
        watched, rows = predicted("validation")
        right = (watched["sequence"] == watched["predicted"]).groupby(watched["patient"]).mean()
        nodes = right.groupby(rows.drop_duplicates("patient").set_index("patient")["node"]).mean().to_dict()
    with written_whole(predictions) as temporary:
        tested.to_csv(temporary, index=False)
    write_json(
        metrics,
        summarise(tested, finished.sequences)
        | {
            "run": {"network": network, "arm": arm, "epsilon": epsilon, "seed": int(seed)},
            "node_accuracy": nodes,
            "environment": environment(place) | ({"tf32": "in convolutions, while training"} if tf32 else {}),
        },
    )


if __name__ == "__main__":
    run(main, snakemake)
