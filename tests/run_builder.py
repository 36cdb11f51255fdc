"""Finished runs with chosen predictions, as the workflow leaves them on disk."""

import pandas as pd

from zetadp.base.storage import write_json
from zetadp.brain.images import volume_accuracy
from zetadp.training.metrics import summarise

SEQUENCES = ("FLAIR", "T1w", "T1gd", "T2w")


def predictions(right, slices=5):
    """One row an image; ``right`` maps each patient to how many of its images, in order, are correct."""
    rows = []
    for patient, count in right.items():
        for number in range(len(SEQUENCES) * slices):
            true = number // slices
            said = true if number < count else (true + 1) % len(SEQUENCES)
            rows.append((patient, SEQUENCES[true], number % slices, SEQUENCES[said], 0.75))
    return pd.DataFrame(rows, columns=["patient", "sequence", "slice", "predicted", "probability"])


def write_run(
    root, right, *, network="complex", arm="federated", epsilon="3", seed=0, slices=5, public=None, **privacy
):
    """Write one run's folder and return it; keywords change its privacy statement.

    ``public`` is what the public weights reach from which the network started.
    """
    folder = root / "runs" / network / arm / f"eps-{epsilon}" / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    table = predictions(right, slices)
    table.to_csv(folder / "predictions.csv", index=False)
    metrics = summarise(table, SEQUENCES, "sequence")
    metrics["task"] = "brain_sequences"
    metrics["volume_accuracy"] = volume_accuracy(table, SEQUENCES)
    metrics["run"] = {"network": network, "arm": arm, "epsilon": epsilon, "seed": seed}
    metrics["environment"] = {"torch": "9.8.7", "python": "3.99", "commit": "0a1b2c3d4e5f-dirty"}
    if public is not None:
        metrics["public_start"] = public
    metrics["node_metric"] = {"node-01": 0.5, "node-02": 0.75}
    write_json(folder / "metrics.json", metrics)
    spent = "inf" if epsilon in ("inf", "unclipped") else float(epsilon)
    statement = {
        "epsilon": spent,
        "epsilon_rdp": spent if spent == "inf" else 1.1 * spent,
        "delta": 0.001,
        "unit": "patient",
        "noise_source": "seeded",
        "threat": {"model": "local", "sums": None, "assumes": "Nothing.", "epsilon_single_messages": None},
        "of_all_images": None,
        "does_not_cover": [],
        "trade_off": {"false_alarms": [0.001, 0.01, 0.05], "misses": [0.9, 0.75, 0.5]},
        "statement": "Simulated, protecting nobody: a statement.",
        "nodes": {"node-01": {"population": 30, "epsilon": spent}, "node-02": {"population": 44, "epsilon": spent}},
    }
    write_json(folder / "privacy.json", statement | privacy)
    history = {"round": [0, 10, 20], "seconds": [0.0, 1.0, 2.0], "learning_rate": [0.002] * 3}
    history |= {"validation_accuracy": [0.25, 0.5, 0.6 + 0.01 * seed], "validation_loss": [1.4, 1.0, 0.9]}
    pd.DataFrame(history).to_csv(folder / "history.csv", index=False)
    return folder
