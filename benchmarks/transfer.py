"""How well the public heads classify images of real patients, on whom nothing was trained or tuned.

    python benchmarks/transfer.py FOLDER

FOLDER is a task in the layout of the Decathlon (`dataset.json` in it). A volume's sequence is decided by the vote of
its slices. Every image is classified by itself, and together with the other images of its slice, one of each sequence.
Chance is 25 %. Writes docs/results/real_patients.csv and .md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scenarios import ended, write_table
from scipy.stats import t

from zetadp.backbone.start import shipped_backbone
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.fourier import to_kspace
from zetadp.mri.volumes import read_centre_slices
from zetadp.mri.whitening import whiten
from zetadp.nn.backbone import load_backbone
from zetadp.nn.models import NetworkSettings
from zetadp.nn.projection import head_scores
from zetadp.nn.settings import DECISIONS
from zetadp.report.provenance import origin
from zetadp.report.rendering import Sheet
from zetadp.tasks.brain_sequences import BrainSequences

OUTPUT = Path(__file__).parents[1] / "docs/results/real_patients"
SLICES = 20
HEADS = {"features": "last layer", "layers": "all layers", "study": "all layers, less the patient's mean"}
"""Public heads, by domain: what the table calls their features."""
TOLD = {decision: BrainSequences(slices=SLICES, decision=decision) for decision in DECISIONS}


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return "real patients, on whom nothing was trained", "none, nothing is drawn"


def measured(folder: Path) -> pd.DataFrame:
    """Return one row for each public head, patient and image."""
    task = read_task(folder)
    files, rows = [*task.training, *task.test], []
    labels = np.repeat(np.arange(len(SEQUENCES)), SLICES)
    for domain, shown in HEADS.items():
        backbone = load_backbone(shipped_backbone(NetworkSettings("head", domain, components=8, start="public")))
        for patient, file in enumerate(files, start=1):
            images = read_centre_slices(folder / file, task.sequences, SLICES, backbone.size)
            features = torch.from_numpy(backbone.features(whiten(to_kspace(images)))).reshape(len(labels), -1)
            for components, head in sorted(backbone.heads.items()):
                scores = head_scores(features, head)
                one = {"features": shown, "components": components, "patient": patient, "true": labels}
                told = {decision: told.probabilities(scores).argmax(dim=1).numpy() for decision, told in TOLD.items()}
                rows.append(pd.DataFrame(one | told))
    return pd.concat(rows, ignore_index=True)


def collect(folder: Path) -> pd.DataFrame:
    """Return one row for each public head: images in % by patient and by sequence, and volumes."""
    rows = []
    for (features, components), own in measured(folder).groupby(["features", "components"], sort=False):
        for decision in DECISIONS:
            right = 100.0 * (own["true"] == own[decision])
            by_patient = right.groupby(own["patient"]).mean()
            vote = own.groupby(["patient", "true"])[decision].agg(lambda found: np.bincount(found).argmax())
            spread = t.ppf(0.975, len(by_patient) - 1) * by_patient.sem()
            rows.append(
                {"features": features, "components": components, "decision": decision, "images": by_patient.mean()}
                | {"low": max(0.0, by_patient.mean() - spread), "high": min(100.0, by_patient.mean() + spread)}
                | {f"patient {patient}": share for patient, share in by_patient.items()}
                | dict(zip(SEQUENCES, right.groupby(own["true"]).mean(), strict=True))
                | {"volumes": int((vote == vote.index.get_level_values("true")).sum()), "of": len(vote)}
            )
    return pd.DataFrame(rows)


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out with one line a head."""
    shares = [name for name in found if str(name).startswith("patient ") or name in SEQUENCES]
    lines = []
    for _, row in found.iterrows():
        images = f"{row['images']:.1f} ({row['low']:.0f} to {row['high']:.0f})"
        by_kind = (f"{row[name]:.1f}" for name in shares)
        name = (row["features"], str(row["components"]), row["decision"])
        lines.append((*name, images, *by_kind, f"{row['volumes']} of {row['of']}"))
    notes = (
        "Images in %, with an interval of 95 % over patients (Student's t, which takes patients as normally spread); "
        "then by patient and by true sequence. Decision: each image by itself, or the images of a slice together, one "
        "of each sequence. Volumes: by the vote of their slices. Chance is 25 %.",
        *made,
    )
    columns = ("features", "components", "decision", "images", *map(str, shares), "volumes")
    return Sheet("Public heads on real patients", columns, tuple(lines), notes, names=3)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="of the table, without ending")
    given = parser.parse_args()
    made = origin(*declared(), command="python benchmarks/transfer.py FOLDER")
    write_table(given.output, collect(given.folder), sheet, made, float_format="%.6g")


if __name__ == "__main__":
    ended(main)
