"""Compare ways to spend the same epsilon over the rounds of a training, on public simulated hospitals.

    python benchmarks/noise_over_rounds.py

The consortia, features and descent of `head_selection.py`: no patient of a private cohort is looked at. Every way has
the same (epsilon, delta) per patient, and but for the second computes about as many patients' gradients in all:

- full: every patient in every round, constant noise;
- full, longer: the same in as many rounds as the cyclic ways have, to tell short steps from less noise;
- decay d: the same, with noise that changes over the rounds to d times the first (`training.noise_decay`);
- cyclic: every patient in every b-th round, fresh noise in every round;
- banded: the same with noise that is correlated over rounds (`zetadp.privacy.correlated`), best for the average of the
  last iterates, or for all iterates (prefix);
- sampled: every patient in a round with probability 6/44.

Ways that take more rounds take shorter steps: what is varied is the rate times the number of rounds. Writes
noise_over_rounds.csv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from head_selection import (
    ALL,
    DELTA,
    HOSPITALS,
    SEEDS,
    TRAINED,
    accuracy,
    arguments,
    consortium,
    declared,
    descended,
    public_head,
)

from zetadp.nn.backbone import load_backbone
from zetadp.privacy.calibration import noise_for_epsilon
from zetadp.privacy.correlated import BandedNoise, CorrelatedDraws, averaged_iterate, best_banded, prefix_sums
from zetadp.privacy.schedule import NoiseSchedule
from zetadp.provenance import origin
from zetadp.rendering import to_csv
from zetadp.storage import write_text

COMPONENTS, EPSILONS = (4, 16, 64), (1.0, 8.0)
LENGTHS = (5.0, 20.0, 60.0)
"""Rates times rounds that are tried."""
ROUNDS, BANDS, SAMPLED = 20, 4, 6 / 44
CLIP, AVERAGED = 0.3, 0.5
DECAYS = (0.3, 0.5, 2.0, 3.0)

Noise = Callable[[int, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Way:
    """A way to spend epsilon.

    Attributes
    ----------
    name
        For the table.
    rounds
        Number of rounds.
    fraction
        Expected fraction of the patients in a round.
    noise
        Returns the noise of a run in units of the clipping norm, from epsilon and a generator.
    drawn
        Returns who takes part in a round, from its number and a generator; None takes everybody.
    """

    name: str
    rounds: int
    fraction: float
    noise: Callable[[float, np.random.Generator], Noise]
    drawn: Callable[[int, np.random.Generator], np.ndarray] | None = None


def full(name: str, rounds: int, decay: float = 1.0) -> Way:
    """Return full participation with noise that changes over the rounds, or not."""

    def noise(epsilon: float, random: np.random.Generator) -> Noise:
        schedule = NoiseSchedule(rounds, decay)
        first = noise_for_epsilon(epsilon, DELTA, 1.0, rounds, decay)
        return lambda number, shape: schedule.noise(first, number) * random.standard_normal(shape)

    return Way(name, rounds, 1.0, noise)


def cyclic(name: str, banded: BandedNoise) -> Way:
    """Return participation in every b-th round, with correlated noise or the independent kind."""

    def noise(epsilon: float, random: np.random.Generator) -> Noise:
        sigma = banded.noise_for_epsilon(epsilon, DELTA)
        # One for the weights and one for the biases, which have shapes of their own.
        draws: dict[tuple[int, ...], CorrelatedDraws] = {}

        def following(_: int, shape: tuple[int, ...]) -> np.ndarray:
            return draws.setdefault(shape, CorrelatedDraws(banded)).following(sigma * random.standard_normal(shape))

        return following

    def drawn(number: int, _: np.random.Generator) -> np.ndarray:
        return np.flatnonzero([banded.taking_part(patient // HOSPITALS, number) for patient in range(TRAINED)])

    return Way(name, banded.rounds, 1 / banded.bands, noise, drawn)


def sampled(rounds: int) -> Way:
    """Return independent draws of the patients in every round."""

    def noise(epsilon: float, random: np.random.Generator) -> Noise:
        sigma = noise_for_epsilon(epsilon, DELTA, SAMPLED, rounds)
        return lambda _, shape: sigma * random.standard_normal(shape)

    def drawn(_: int, random: np.random.Generator) -> np.ndarray:
        return np.flatnonzero(random.random(TRAINED) < SAMPLED)

    return Way("sampled", rounds, SAMPLED, noise, drawn)


def ways() -> list[Way]:
    """Return every way that is compared."""
    rounds = ROUNDS * BANDS
    independent = BandedNoise(rounds, (1.0, *[0.0] * (BANDS - 1)))
    return [
        full("full", ROUNDS),
        full("full, longer", rounds),
        *(full(f"decay {decay:g}", ROUNDS, decay) for decay in DECAYS),
        cyclic("cyclic", independent),
        cyclic("banded", best_banded(rounds, BANDS, averaged_iterate(rounds, AVERAGED))),
        cyclic("banded, prefix", best_banded(rounds, BANDS, prefix_sums(rounds))),
        sampled(round(ROUNDS / SAMPLED)),
    ]


def main() -> None:
    """Try every way on both consortia and write the table."""
    parser = arguments(__doc__, "noise_over_rounds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone(given.backbone)
    cohorts = [consortium(seed, backbone, given.cache)[..., : 2 * max(COMPONENTS)] for seed in SEEDS]
    splits = [np.random.default_rng(seed).permutation(ALL) for seed in SEEDS]
    compared = ways()
    rows = []
    for components in COMPONENTS:
        parts = [
            [np.ascontiguousarray(features[half, :, : 2 * components]) for half in (order[:TRAINED], order[TRAINED:])]
            for features, order in zip(cohorts, splits, strict=True)
        ]
        public = public_head(backbone, components)
        starts = {"public": public, "zero": tuple(np.zeros_like(part) for part in public)}
        for start, first in starts.items():
            for epsilon in EPSILONS:
                for way in compared:
                    for length in LENGTHS:
                        found = [
                            [
                                accuracy(*trained(train, first, way, epsilon, length, repetition), held_out)
                                for repetition in range(given.repetitions)
                            ]
                            for train, held_out in parts
                        ]
                        spread = np.std(found, axis=1, ddof=1)
                        rows.append(
                            {
                                "components": components,
                                "start": start,
                                "epsilon": epsilon,
                                "way": way.name,
                                "rounds": way.rounds,
                                "length": length,
                                "mean": np.mean(found),
                                "spread": np.sqrt(np.mean(spread**2)),
                            }
                        )
                print(pd.DataFrame(rows).tail(len(compared) * len(LENGTHS)).to_string(), flush=True)
    table = pd.DataFrame(rows)
    write_text(given.output, to_csv(table, origin(*declared(given.repetitions)), float_format="%.4g"))
    best = table.groupby(["start", "components", "epsilon", "way"], sort=False)["mean"].max()
    print("\nbest length of each:\n", best.unstack("way")[[way.name for way in compared]].round(2).to_string())


def trained(
    features: np.ndarray,
    start: tuple[np.ndarray, np.ndarray],
    way: Way,
    epsilon: float,
    length: float,
    repetition: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return a head trained in one way."""
    sampling, random = np.random.default_rng([0, repetition]), np.random.default_rng([1, repetition])
    noise, drawn = way.noise(epsilon, random), way.drawn
    return descended(
        features,
        start,
        rounds=way.rounds,
        rate=length / way.rounds,
        clip=CLIP,
        averaged=AVERAGED,
        noise=lambda number, shape: CLIP * noise(number, shape),
        drawn=None if drawn is None else lambda number: drawn(number, sampling),
        fraction=way.fraction,
    )


if __name__ == "__main__":
    main()
