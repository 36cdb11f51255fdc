r"""Compare one head, whose taper follows from the noise, with two heads whose tapers are fixed.

    python -m benchmarks.one_head

The cohorts are that of the default, and one whose patients were drawn after the rule was fixed (the seed is the first
eight hexadecimal digits of commit ffa8edd) and are used once. Their features are those of the workflow, as in

    snakemake --cores 2 --configfile workflow/scenarios/held_apart_drawn.yaml \
        --config 'cohort={name: phantom-drawn-4, simulated: {seed: 4289261020}}'

The descent is that of head_selection.py. A seed gives all heads the same draw of the noise, so that differences
are paired. Writes one_head.csv.
"""

from __future__ import annotations

import argparse
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats

from benchmarks.head_selection import accuracy, public_head, trained
from zetadp.base.storage import write_text
from zetadp.core.start import shipped_backbone
from zetadp.federation.partition import read_partition
from zetadp.nn.backbone import load_backbone
from zetadp.nn.settings import IMAGE, SLICE, STUDY, NetworkSettings
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.tasks.brain_sequences.stacks import load_role

COHORTS = {"phantom-no-atlas": ("default", 2026), "phantom-drawn-4": ("held-apart-drawn", 4289261020)}
"""Experiment whose partition is read, and seed, of each cohort."""
HEADS: dict[str, dict[str, Any]] = {
    "steep": {"taper": 1.5, "rate": 10.0},
    "gentle": {"taper": 0.75, "rate": 30.0},
    "one": {"signal": 0.009, "rate": 30.0},
}
SEEDS = range(10)


def main() -> None:
    """Train every head with every seed and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results/one_head.csv"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = public_head(load_backbone(shipped_backbone(NetworkSettings("head", STUDY))), 64)
    rows = []
    for cohort, (experiment, _) in COHORTS.items():
        train, test = (_features(cohort, experiment, role) for role in ("train", "test"))
        for epsilon in (1.0, 8.0):
            reached: dict[tuple[str, str], list[float]] = {}
            for (name, how), seed in product(HEADS.items(), SEEDS):
                random = np.random.default_rng(seed)
                settings: dict[str, Any] = {"rounds": 20, "clip": 0.1, "averaged": 0.5, **how}
                head = trained(train, start, epsilon=epsilon, random=random, **settings)
                for decision in (SLICE, IMAGE):
                    reached.setdefault((name, decision), []).append(accuracy(*head, test, decision))
            for decision in (SLICE, IMAGE):
                found = {name: np.array(reached[name, decision]) for name in HEADS}
                better = max(("steep", "gentle"), key=lambda name: found[name].mean())
                difference = found["one"] - found[better]
                half = stats.t.ppf(0.975, len(SEEDS) - 1) * difference.std(ddof=1) / math.sqrt(len(SEEDS))
                mean = difference.mean()
                cell = {"cohort": cohort, "decision": decision, "epsilon": f"{epsilon:g}"}
                row = cell | {name: values.mean() for name, values in found.items()}
                row |= {"better of two": better, "difference": mean, "low": mean - half, "high": mean + half}
                rows.append(row | {"seeds": len(SEEDS)})
                print(rows[-1], flush=True)
    cohorts = "; ".join(f"{name}, 484 + 266 patients, seed {seed}" for name, (_, seed) in COHORTS.items())
    made = origin(cohorts, f"{SEEDS[0]} to {SEEDS[-1]}")
    write_text(given.output, to_csv(pd.DataFrame(rows), made, float_format="%.4g"))


def _features(cohort: str, experiment: str, role: str) -> np.ndarray:
    """Return the features of patients of a role as real numbers, shape (patient, image, 2 * component)."""
    folder = Path("resources") / cohort
    stack, rows = load_role(
        sorted(folder.glob("study/*.h5")), read_partition(folder / f"partitions/{experiment}.csv"), role
    )
    return stack.values.reshape(len(rows), 80, -1)[..., :64].copy().view(np.float32)


if __name__ == "__main__":
    main()
