"""Measure heads on real people: the public head, and heads that were trained on such people, with and without noise.

    python -m benchmarks.real_heads FOLDER --decathlon OTHER

FOLDER is a task in the layout of the Decathlon whose volumes show whole heads, with the sequences FLAIR, T1w and T1gd.
The people of the kept table have glioma. Their series name no spacing, so the planes lie in the middle sixth of each
series, which is about 20 mm. OTHER is a task with all four sequences, on which the public head alone is measured. The
command writes docs/results/real_heads.csv and real_heads.md.

Each person is measured as scanned, and with a crude mask of the brain (`crude_mask`), which often leaves bone or scalp.
Heads are trained as the default's is, in five folds over people: on four fifths of them, at one data holder or at five
hospitals whose masked sums hide all messages but their sum, and measured on the last fifth. Heads of the default's
simulated cohort are measured too: they were trained without such people. All noise is seeded, so the guarantees are
simulated. The descent is that of `benchmarks.study_selection`, written with matrices.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import nibabel as nib
import numpy as np
import pandas as pd
import torch
from scipy import ndimage

from benchmarks.study_selection import (
    COHORTS,
    COMPONENTS,
    SETTINGS,
    TASK,
    TRAINED,
    TRIED,
    cohort,
    public_head,
    score,
    train_head,
)
from zetadp.base.tables import Sheet
from zetadp.brain.backbone import Backbone, load_backbone, shipped_backbone
from zetadp.brain.images import by_orders
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.kspace import to_kspace
from zetadp.mri.slicing import resize_area
from zetadp.mri.volumes import read_centre_slices
from zetadp.nn.settings import STUDY, NetworkSettings
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import write_table

RESULTS = Path(__file__).parents[1] / "docs/results"
FOLDS, DRAWS, RESAMPLES = 5, 5, 2000
EPSILONS = (1.0, 3.0, 8.0, math.inf)
HOLDERS = {"one holder": 1, "five hospitals, masked sums": 5}
COLLUDING, MISSING = 1, 0
"""Hospitals against which masked sums protect, and hospitals that may be away in a round."""
TITLE = "Heads on real people"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--decathlon", type=Path, help="task with all four sequences")
    parser.add_argument("--backbone", type=Path, default=shipped_backbone(NetworkSettings("head", STUDY)))
    parser.add_argument("--cache", type=Path, default=Path("resources/study_selection"), help="features of the cohort")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    backbone = load_backbone(arguments.backbone)
    rows = []
    settings = next(iter(COHORTS.values()))
    simulated = cohort(settings, backbone, arguments.cache, whole=True)[:TRAINED]
    simulated -= simulated.mean(1, keepdims=True)
    for view, masked in (("skull and scalp", False), ("crude mask of the brain", True)):
        order, images = read_people(arguments.folder, masked=masked)
        features = features_of(backbone, images)
        results = cross_validated(backbone, features, order) + measure_simulated_heads(
            backbone, simulated, features, order
        )
        rows += [{"people": len(images), "shown": view} | row for row in results]
    if arguments.decathlon is not None:
        task = read_task(arguments.decathlon)
        files = (*task.training, *task.test)
        images = np.stack([read_centre_slices(arguments.decathlon / file, task.sequences_of(file)) for file in files])
        row = accuracies(score(features_of(backbone, images), public_head(backbone, COMPONENTS)), SEQUENCES)
        rows.append({"people": len(images), "shown": "the brain", "head": "public", "epsilon": "none"} | row)
    write(pd.DataFrame(rows), arguments.output)


def read_people(folder: Path, *, masked: bool) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the sequences of a task in canonical order, and images of shape (person, sequence, slice, row, column)."""
    task = read_task(folder)
    order = tuple(name for name in SEQUENCES if name in task.sequences)
    people = []
    for file in (*task.training, *task.test):
        volume = np.asarray(nib.as_closest_canonical(nib.load(folder / file)).dataobj)
        volume = volume[..., [task.sequences.index(name) for name in order]]
        depth = volume.shape[2]
        planes = (depth - 1) / 2 + (np.arange(TASK.slices) - (TASK.slices - 1) / 2) / TASK.slices * depth / 6
        indices, of_planes = np.unique(np.clip(np.rint(planes), 0, depth - 1).astype(int), return_inverse=True)
        slices = volume[:, ::-1, indices].astype(np.float32)
        if masked:
            slices *= crude_mask(slices)[..., None]
        people.append(resize_area(np.transpose(slices, (3, 2, 1, 0)), TASK.size)[:, of_planes])
    return order, np.stack(people)


def crude_mask(slices: np.ndarray) -> np.ndarray:
    """Return a crude mask (x, y, slice) of the brain in slices (x, y, slice, sequence) of a whole head.

    Voxels brighter than half of the middle of the head in two sequences are eroded until brain and scalp separate; the
    largest part is dilated. Bone and scalp remain where the skull is thin.
    """
    mask = np.zeros(slices.shape[:3], dtype=bool)
    small, large = (np.hypot(*np.mgrid[-r : r + 1, -r : r + 1]) <= r + 0.3 for r in (2, 6))
    for z in range(slices.shape[2]):
        smooth = ndimage.gaussian_filter(slices[:, :, z], (1, 1, 0))
        mean = smooth.mean(-1)
        x, y = (int(middle) for middle in ndimage.center_of_mass(mean > mean.mean()))
        usual = np.median(smooth[x - 25 : x + 25, y - 25 : y + 25], axis=(0, 1))
        bright = (smooth > 0.45 * usual).sum(-1) >= 2
        parts, count = ndimage.label(ndimage.binary_erosion(bright, large))
        if count:
            largest = 1 + int(np.argmax(ndimage.sum_labels(parts > 0, parts, range(1, count + 1))))
            brain = ndimage.binary_dilation(parts == largest, large) & ndimage.binary_dilation(bright, small)
            mask[:, :, z] = ndimage.binary_fill_holes(brain)
    return mask


def features_of(backbone: Backbone, images: np.ndarray) -> np.ndarray:
    """Return features of people, less the mean of each, as real numbers (person, image, 2 * component)."""
    people = [backbone.features(to_kspace(person.astype(np.float32))) for person in images]
    return np.stack(people).reshape(len(images), -1, backbone.components).view(np.float32)[..., : 2 * COMPONENTS]


def cross_validated(backbone: Backbone, features: np.ndarray, order: tuple[str, ...]) -> list[dict[str, object]]:
    """Return a row of accuracies for the public head, and one for each arm and epsilon, over all folds and draws."""
    start = public_head(backbone, COMPONENTS)
    labels = np.array([SEQUENCES.index(name) for name in order]).repeat(features.shape[1] // len(order))
    folds = np.array_split(np.random.default_rng(0).permutation(len(features)), FOLDS)
    public = score(features, start)
    rows = [{"head": "public", "epsilon": "none"} | accuracies(public, order)]
    for arm, holders in HOLDERS.items():
        for epsilon in EPSILONS:
            if holders > 1 and math.isinf(epsilon):
                continue
            answers = []
            for draw in range(1 if math.isinf(epsilon) else DRAWS):
                scores = torch.empty_like(public)
                for number, fold in enumerate(folds):
                    others = np.setdiff1d(np.arange(len(features)), fold)
                    head = train_head(
                        features[others],
                        start,
                        epsilon=epsilon,
                        random=np.random.default_rng([draw, number]),
                        hospitals=holders,
                        shares=1 if holders == 1 else holders - COLLUDING - MISSING,
                        labels=labels,
                        **SETTINGS,
                    )
                    scores[fold] = combine_scores(score(features[fold], head), public[fold], order)
                answers.append(scores)
            rows.append({"head": arm, "epsilon": f"{epsilon:g}"} | accuracies(torch.stack(answers), order, public))
    return rows


def measure_simulated_heads(
    backbone: Backbone, simulated: np.ndarray, features: np.ndarray, order: tuple[str, ...]
) -> list[dict[str, object]]:
    """Return a row of accuracies for each epsilon of heads that were trained on a simulated cohort."""
    start = public_head(backbone, COMPONENTS)
    public, rows = score(features, start), []
    for epsilon in TRIED:
        answers = []
        for draw in range(DRAWS):
            head = train_head(simulated, start, epsilon=epsilon, random=np.random.default_rng(draw), **SETTINGS)
            answers.append(combine_scores(score(features, head), public, order))
        names = {"head": "of the default's cohort", "epsilon": f"{epsilon:g}"}
        rows.append(names | accuracies(torch.stack(answers), order, public))
    return rows


def with_absent(scores: torch.Tensor, order: tuple[str, ...]) -> torch.Tensor:
    """Return scores of shape (..., image, class) with images of all sequences; those of absent ones have NaN."""
    images = scores.reshape(*scores.shape[:-2], len(order), TASK.slices, len(SEQUENCES))
    every = images.new_full((*images.shape[:-3], len(SEQUENCES), *images.shape[-2:]), torch.nan)
    every[..., [SEQUENCES.index(name) for name in order], :, :] = images
    return every


def combine_scores(trained_scores: torch.Tensor, public: torch.Tensor, order: tuple[str, ...]) -> torch.Tensor:
    """Return the joint scores of both heads, from scores of shape (person, image, class)."""
    trained, padded_public = (with_absent(scores, order).flatten(0, 2) for scores in (trained_scores, public))
    both = TASK.combine_scores(trained, padded_public).reshape(len(public), len(SEQUENCES), TASK.slices, -1)
    return both[:, [SEQUENCES.index(name) for name in order]].reshape(public.shape)


def accuracies(scores: torch.Tensor, order: tuple[str, ...], public: torch.Tensor | None = None) -> dict[str, object]:
    """Return accuracies in % with 95 % intervals over people, and the number of volumes classified correctly by a vote.

    Parameters
    ----------
    scores
        Shape (person, image, class), or (draw, person, image, class); means are over draws.
    order
        Sequences of the images, each with as many slices.
    public
        Scores of the public head, shape (person, image, class), from which the gain by slice is counted.
    """
    images = with_absent(scores.reshape(-1, *scores.shape[-3:]), order)
    classes = [SEQUENCES.index(name) for name in order]
    labels = torch.tensor(classes)
    together = by_orders(images.transpose(2, 3)).transpose(2, 3)[:, :, classes]
    row: dict[str, object] = {}
    for name, answers in (("image", images[:, :, classes].argmax(-1)), ("slice", together.argmax(-1))):
        share = 100 * (answers == labels[:, None]).double().mean((0, 2, 3))
        row |= dict(zip((f"{name} %", f"{name} low", f"{name} high"), mean_of(share), strict=True))
    votes = torch.nn.functional.one_hot(together.argmax(-1), len(SEQUENCES)).sum(3) + together.mean(3) / TASK.slices
    right = (votes.argmax(-1) == labels).double().mean(0)
    row |= {"volumes right": float(right.sum()), "volumes": right.numel()}
    if public is not None:
        before = by_orders(with_absent(public, order).transpose(1, 2)).transpose(1, 2)[:, classes].argmax(-1)
        gain = 100 * ((together.argmax(-1) == labels[:, None]).double().mean(0) - (before == labels[:, None]).double())
        row |= dict(zip(("gain", "gain low", "gain high"), mean_of(gain.mean((1, 2))), strict=True))
    return row


def mean_of(values: torch.Tensor) -> tuple[float, float, float]:
    """Return the mean of one value per person, and a 95 % bootstrap interval over people."""
    resamples = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values.numpy()[resamples].mean(1), (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def write(table: pd.DataFrame, folder: Path) -> None:
    """Write the table as CSV and Markdown."""
    cohort = "fifty people with glioma, whole heads, three sequences; three with multiple sclerosis, stripped"
    source = origin(cohort, seeds_shown(range(DRAWS)))
    note = (
        "Image: each image by itself; slice: the images of a slice together. 95 % intervals over people by bootstrap. "
        f"Private heads: five folds, {DRAWS} draws of seeded noise, delta 0.001 per person; both heads answer. "
        "Gain: points by slice more than the public head."
    )
    texts = table.astype(object).where(table.notna(), "").map(lambda v: f"{v:.1f}" if isinstance(v, float) else str(v))
    rows = tuple(tuple(row) for row in texts.to_numpy())
    sheet = Sheet(TITLE, tuple(texts.columns), rows, (note,), names=4)
    write_table([folder / "real_heads.md", folder / "real_heads.csv"], table, sheet, source, float_format="%.4g")
    print(texts.to_string())


if __name__ == "__main__":
    main()
