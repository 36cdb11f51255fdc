"""Compare heads in closed form with the head of private descent, on the public hospitals of head_selection.py.

    python benchmarks/closed_form.py

Consortia, split, guarantee and draws of the noise are those of head_selection.py. A head in closed form needs a single
round, with the noise of a single round. It is computed by the library's estimators (`zetadp.nn.closed_form`), with and
without the public head as a start. Private descent has the setting that head_selection.py chose. Writes
closed_form.csv.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from head_selection import (
    ALL,
    DELTA,
    HOSPITALS,
    LABELS,
    SEEDS,
    TRAINED,
    accuracy,
    arguments,
    consortium,
    declared,
    public_head,
    trained,
)

from zetadp.base.storage import write_text
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.closed_form import ClosedForm, closed_form
from zetadp.nn.projection import head_scores
from zetadp.nn.settings import CLOSED_FORMS
from zetadp.privacy import gaussian
from zetadp.privacy.clipping import clip_factors
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from torch import Tensor

COMPONENTS, EPSILONS, NORMS = (2, 4, 8, 16, 64), (math.inf, 8.0, 1.0), (0.8, 1.0, 1.5)
DESCENT = {"rounds": 20, "rate": 1.0, "clip": 0.3, "averaged": 0.5}
CLASSES = 4


def solved(
    contributions: Tensor,
    estimator: str,
    components: int,
    norm: float,
    public: Tensor | None,
    epsilon: float,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Return the head that follows from one noisy message of every hospital."""
    statistic = statistic_of(estimator, components, norm)
    sigma = 0.0 if math.isinf(epsilon) else 1 / gaussian.mu(epsilon, DELTA)
    own = len(contributions) // HOSPITALS
    hospital = torch.arange(len(contributions)) % HOSPITALS
    sums = torch.stack([contributions[hospital == place].sum(dim=0) for place in range(HOSPITALS)])
    noise = np.random.default_rng(seed).standard_normal(sums.shape, dtype=np.float32)
    mean = ((sums + sigma * torch.from_numpy(noise)) / own).mean(dim=0)
    return statistic.head(mean, sigma / own / math.sqrt(HOSPITALS), public)


def statistic_of(estimator: str, components: int, norm: float) -> ClosedForm:
    """Return an estimator for patients with as many images of every class, and the clipping norm one."""
    shares = (1 / CLASSES,) * CLASSES
    return closed_form(estimator, components=components, shares=shares, norm=norm, bound=1.0, clipped=True)


def contributed(images: Tensor, estimator: str, components: int, norm: float) -> Tensor:
    """Return the clipped contributions of patients, whose features have shape (patient, image, component)."""
    labels = torch.from_numpy(LABELS).expand(len(images), -1)
    found = statistic_of(estimator, components, norm)(images[:, :, None, None], labels)
    return found * clip_factors([found], 1.0)[0][:, None]


def main() -> None:
    """Measure every estimator on both consortia and write the table."""
    parser = arguments(__doc__, "closed_form")
    parser.add_argument("--patients", type=int, default=ALL, help="patients of each consortium, the first of them")
    given = parser.parse_args()
    torch.set_num_threads(2)
    backbone = load_backbone(given.backbone)
    splits = []
    for seed in SEEDS:
        features = consortium(seed, backbone, given.cache, given.patients)
        order = np.random.default_rng(seed).permutation(given.patients)
        # Every hospital has the same number of patients, so that the noise of all hospitals has the same size.
        count = round(given.patients * TRAINED / ALL) // HOSPITALS * HOSPITALS
        splits.append((features[order[:count]], features[order[count:]]))
    table = pd.DataFrame(rows(backbone, splits, given.repetitions))
    table.insert(0, "patients", given.patients)
    write_text(given.output, to_csv(table, origin(*declared(given.repetitions)), float_format="%.4g"))


def rows(backbone: Backbone, splits: list[tuple[np.ndarray, np.ndarray]], repetitions: int) -> list[dict[str, object]]:
    """Return one row per setting: the mean accuracy over consortia and draws of the noise, in %."""
    found: list[dict[str, object]] = []

    def add(estimator: str, components: int, start: str, norm: float | None, epsilon: str, values: list[float]) -> None:
        row = {"estimator": estimator, "components": components, "start": start, "feature_norm": norm}
        found.append({**row, "epsilon": epsilon, "mean": np.mean(values)})
        print(found[-1], flush=True)

    for components in COMPONENTS:
        start = public_head(backbone, components)
        near = [tuple(part[..., : 2 * components] for part in split) for split in splits]
        add("none", components, "public", None, "public head", [accuracy(*start, test) for _, test in near])
        for epsilon in EPSILONS:
            draws = range(1 if math.isinf(epsilon) else repetitions)
            values = [
                accuracy(*trained(train, start, epsilon=epsilon, random=np.random.default_rng(draw), **DESCENT), test)
                for train, test in near
                for draw in draws
            ]
            add("descent", components, "public", None, f"{epsilon:g}", values)
        heads = {"public": backbone.heads[components][0], "zero": None}
        complexes = [
            [torch.view_as_complex(torch.from_numpy(p.copy()).unflatten(-1, (-1, 2))) for p in s] for s in near
        ]
        for estimator, norm in product(CLOSED_FORMS, NORMS):
            contributions = [contributed(train, estimator, components, norm) for train, _ in complexes]
            for (name, public), epsilon in product(heads.items(), EPSILONS):
                values = []
                for (_, test), each in zip(complexes, contributions, strict=True):
                    for draw in range(1 if math.isinf(epsilon) else repetitions):
                        weight, bias = solved(each, estimator, components, norm, public, epsilon, draw)
                        told = head_scores(test, (weight.to(test.dtype), bias.to(test.dtype))).argmax(dim=-1)
                        values.append(100 * float((told == torch.from_numpy(LABELS)).float().mean()))
                add(estimator, components, name, norm, f"{epsilon:g}", values)
    return found


if __name__ == "__main__":
    main()
