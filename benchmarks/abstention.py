"""Make and test the thresholds with which `zetadp predict` abstains from doubtful answers.

    python -m benchmarks.abstention --fit
    python -m benchmarks.abstention [--real FOLDER]

The first command makes the package's file, from simulated public patients on whom no network was trained. Every patient
has a separate scanner. Half of the brains are of the atlas, half are random shapes, which differ most from the training
data of networks. Half of the patients give the class means, the others the thresholds.

The second command tests the thresholds: on cohorts that differ from these patients, on inputs that are not brains, and
on real patients if a folder is given, a task in the layout of the Decathlon. The heads are those of the default: the
public one, and the one after private training on the default's cohort with local noise. It writes
docs/results/abstention. Features are those of study_selection.py, in its cache.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.study_selection import (
    ALL,
    COHORTS,
    COMPONENTS,
    SETTINGS,
    TASK,
    TRAINED,
    cohort,
    public_head,
    train_head,
)
from zetadp.base.tables import Sheet
from zetadp.base.tensors import tensors_digest
from zetadp.brain.abstention import RIGHT, UNLIKE, UNSURE, PublicFeatures, abstention_for, mean_scores
from zetadp.brain.backbone import Backbone, load_backbone, shipped_backbone
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.kspace import to_kspace
from zetadp.mri.volumes import read_centre_slices
from zetadp.nn.heads import to_complex_weights
from zetadp.nn.models import HeadClassifier
from zetadp.nn.settings import STUDY, NetworkSettings
from zetadp.phantom.public import simulate_public_patient
from zetadp.phantom.public_brains import draw_anatomy, draw_shapes
from zetadp.report.provenance import origin
from zetadp.report.rendering import write_table
from zetadp.training.metrics import accuracy_interval
from zetadp.training.pretrained import FinishedModel

RESULTS = Path(__file__).parents[1] / "docs/results/abstention"
SEED = 2
EACH = 200
"""Patients with each kind of brain."""
SLICES, SIZE = TASK.slices, TASK.size
TITLE = "Volumes that the default's head answers, and how many of these answers are wrong"
HEAD = NetworkSettings("head", STUDY, components=COMPONENTS, start="public")


def main() -> None:
    """Make a file of the package, or the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--real", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("resources/study_selection"))
    arguments = parser.parse_args()
    backbone = load_backbone(shipped_backbone(HEAD))
    if arguments.fit:
        fit(backbone)
    else:
        write(pd.DataFrame(measure_all(backbone, arguments.cache, arguments.real)))


def fit(backbone: Backbone) -> None:
    """Make the package's file."""
    features = [
        np.stack([mean_features(backbone, simulate_public_patient(SEED, n, anatomy=kind)) for n in range(EACH)])
        for kind in (draw_anatomy, draw_shapes)
    ]
    about = {"command": "python -m benchmarks.abstention --fit", "seed": SEED, "patients": 2 * EACH}
    about |= {"backbone": tensors_digest(backbone.tensors())}
    halves = [np.concatenate([part[half] for part in features]) for half in (slice(EACH // 2), slice(EACH // 2, None))]
    PublicFeatures.fit(*halves, about).save()


def mean_features(backbone: Backbone, images: np.ndarray) -> np.ndarray:
    """Return mean features of a patient's volumes, before the patient's mean is subtracted, (volume, component)."""
    read = replace(backbone, centred=False).features
    return read(to_kspace(images.astype(np.float32)))[..., 0, :].mean(axis=1)


def heads(backbone: Backbone, private: np.ndarray) -> dict[str, FinishedModel]:
    """Return the public head, and the heads of the default after training on some patients."""
    start = public_head(backbone, COMPONENTS)
    weights = {"public": start}
    for epsilon in (1.0, 8.0):
        random = np.random.default_rng(0)
        weights[f"ε = {epsilon:g}"] = train_head(private, start, epsilon=epsilon, random=random, **SETTINGS)
    models = {}
    for name, (weight, bias) in weights.items():
        network = HeadClassifier(COMPONENTS, len(SEQUENCES)).requires_grad_(requires_grad=False)
        network.affine.weight.copy_(to_complex_weights(torch.from_numpy(weight.T.copy())))
        network.affine.bias.copy_(torch.from_numpy(bias))
        models[name] = FinishedModel(network.eval(), HEAD, TASK, "brain_sequences", backbone.components, backbone)
    return models


def measure_all(backbone: Backbone, folder: Path, real: Path | None) -> list[dict[str, object]]:
    """Measure patients of all cohorts, real patients if given, and inputs without a brain."""
    inputs, private = {}, None
    for name, settings in COHORTS.items():
        features = cohort(settings, backbone, folder, whole=private is None)
        private = features[:TRAINED] if private is None else private
        volumes = features[TRAINED - ALL :].reshape(-1, len(SEQUENCES), SLICES, features.shape[-1])
        inputs[name] = torch.view_as_complex(torch.from_numpy(volumes.mean(2)).unflatten(-1, (-1, 2)).contiguous())
    if real is not None:
        task = read_task(real)
        stacks = [
            read_centre_slices(real / file, task.sequences, SLICES, SIZE) for file in (*task.training, *task.test)
        ]
        inputs["real patients"] = torch.from_numpy(np.stack([mean_features(backbone, stack) for stack in stacks]))
    brain_inputs = list(inputs)
    for name, images in nonsense(np.random.default_rng(0)).items():
        # Four volumes after each other are the sequences of one patient.
        inputs[name] = torch.from_numpy(
            np.stack([mean_features(backbone, four) for four in images.reshape(-1, 4, *images.shape[1:])])
        )
    rows = []
    for head, model in heads(backbone, private - private.mean(1, keepdims=True)).items():
        rows += [
            {"head": head} | measure_input(model, features, name, name in brain_inputs)
            for name, features in inputs.items()
        ]
    return rows


def measure_input(model: FinishedModel, features: torch.Tensor, name: str, is_brain: bool) -> dict[str, object]:
    """Return the numbers of answered volumes and of right answers, with intervals over patients."""
    abstention = abstention_for(model)
    assert abstention is not None
    confidence, predicted = abstention.probabilities(mean_scores(model, features)).max(dim=-1)
    verdicts = np.array(abstention.verdicts(features.flatten(0, 1), confidence.flatten())).reshape(confidence.shape)
    answered, right = verdicts == "", predicted.numpy() == np.arange(len(SEQUENCES))
    row = {"input": name, "volumes": confidence.numel(), "answered": int(answered.sum())}
    row |= {"unsure": int((verdicts == UNSURE).sum()), "unlike": int((verdicts == UNLIKE).sum())}
    if not is_brain:
        return row
    n_answers, wrong = answered.sum(1), (answered & ~right).sum(1)
    row |= {"right of all": int(right.sum()), "wrong of answered": int(wrong.sum())}
    for label, upper, lower in (("answered", n_answers, np.full(len(confidence), 4)), ("error", wrong, n_answers)):
        counted = lower > 0
        low, high = accuracy_interval(upper[counted], lower[counted], np.random.default_rng(0))
        row |= {f"{label} %": 100 * upper.sum() / max(lower.sum(), 1), f"{label} low": 100 * low}
        row |= {f"{label} high": 100 * high}
    return row


def nonsense(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return inputs without a brain, 52 volumes of each kind."""
    shape = (52, SLICES, SIZE, SIZE)
    row, column = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    radii, speckle = random.uniform(5, 14, size=(52, 1, 1, 1)), 0.05 * random.random(shape)
    side = np.maximum(abs(row), abs(column))
    return {
        "noise, Gaussian": np.abs(random.normal(size=shape)),
        "noise, uniform": random.random(shape),
        "ramp with noise": (row + column + SIZE) / SIZE + 0.5 * speckle * 10,
        "disc": (row**2 + column**2 < radii**2) + speckle,
        "square": (side < radii) + speckle,
        "checkerboard": (row + column) % 2 + speckle,
        "stripes": np.sin(column * random.uniform(0.2, 1.5, size=(52, 1, 1, 1))) + 1 + speckle,
    }


def write(table: pd.DataFrame) -> None:
    """Write the table as CSV and Markdown."""
    cohorts = "; ".join(f"{name}: {settings.population}, seed {settings.seed}" for name, settings in COHORTS.items())
    source = origin(cohorts, "0 of the noise and of the inputs without a brain")
    note = (
        f"An answer is sure from the probability at which {RIGHT:.0%} of the answers were right for {EACH} public "
        "patients who gave the thresholds. Low and high: 95 % intervals over patients, by bootstrap, or exact where "
        "all patients are alike. Private heads were trained on the first cohort, with local noise; its patients here "
        "took no part."
    )
    cells = tuple(
        tuple("–" if pd.isna(v) else v if isinstance(v, str) else f"{v:.4g}" for v in r) for r in table.to_numpy()
    )
    sheet = Sheet(TITLE, tuple(table.columns), cells, (note,), names=2)
    files = [RESULTS / "table.md", RESULTS / "table.csv"]
    write_table(files, table.convert_dtypes(), sheet, source, float_format="%.4g")


if __name__ == "__main__":
    main()
