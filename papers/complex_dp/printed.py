"""List every epsilon that the two complex-valued papers print, and the true epsilon of their noise.

Ziller et al., Complex-valued deep learning with differential privacy, prove their theorems for noise of variance
sigma^2 in each part of a complex number, but add noise of variance sigma^2 / 2. The true noise multiplier is therefore
sigma / sqrt(2). Riess et al., Complex-valued Federated Learning with Differential Privacy and MRI Applications,
correctly add noise of variance sigma^2 in each part. They print target epsilons but not their noise, so only the
accountants can be compared.

    python -m papers.complex_dp.printed

prints the tables of docs/printed.md as Markdown. True epsilons are rounded up, as on all pages.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from zetadp.accounting import composition, gaussian
from zetadp.accounting.calibration import noise_for_epsilon
from zetadp.accounting.composition import central_limit_noise
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import rounded_up


@dataclass(frozen=True)
class PrintedClaim:
    """One private training as Ziller et al. print it.

    Attributes
    ----------
    experiment
        Name of the experiment.
    epsilon
        Printed epsilon.
    sampling_probability, noise_multiplier, rounds, delta
        Printed settings. Rounds are epochs divided by the sampling probability. The paper samples without replacement.
        Here, as in the paper's own accountant, draws are assumed to be independent.
    """

    experiment: str
    epsilon: float
    sampling_probability: float
    noise_multiplier: float
    rounds: int
    delta: float


ZILLER = (
    PrintedClaim("PhaseMNIST", 0.53, 0.01, 1.1, 1000, 1e-5),
    PrintedClaim("ECG", 1.76, 0.063, 5.0, 1588, 1012**-1.1),
    PrintedClaim("Speech commands", 1.47, 0.009, 1.0, 556, 1e-5),
    PrintedClaim("fastMRI knee, per slice", 0.67, 3e-5, 1.0, 1_042_260, 1e-5),
)
RIESS_EPSILONS = (1.0, 3.0, 5.0, 8.0, 10.0)
RIESS_SAMPLING, RIESS_ROUNDS, RIESS_DELTA = 24 / 44, 917, 1e-3


def as_claimed(claim: PrintedClaim) -> float:
    """Return epsilon if the noise were what the theorems assume: variance sigma^2 in each part."""
    return _epsilon(claim, claim.noise_multiplier)


def as_added(claim: PrintedClaim) -> float:
    """Return epsilon for the noise that is added: variance sigma^2 / 2 in each part."""
    return _epsilon(claim, claim.noise_multiplier / math.sqrt(2))


def riess_row(epsilon: float) -> tuple[float, float, float]:
    """Return three epsilons for a printed target epsilon.

    The first is the noise multiplier that the target needs, by the privacy-loss distribution. The second is the true
    epsilon with noise from the central-limit formula, which the paper cites and which is not a bound. The third is the
    true epsilon if a library splits this variance between the real and the imaginary part, as PyTorch and Opacus 1.6
    do.
    """

    def spent(noise: float) -> float:
        return composition.epsilon({NoisySum(RIESS_SAMPLING, noise): RIESS_ROUNDS}, RIESS_DELTA)

    noise = noise_for_epsilon(epsilon, RIESS_DELTA, RIESS_SAMPLING, RIESS_ROUNDS)
    limit = central_limit_noise(gaussian.mu(epsilon, RIESS_DELTA), RIESS_SAMPLING, RIESS_ROUNDS)
    return noise, spent(limit), spent(noise / math.sqrt(2))


def _epsilon(claim: PrintedClaim, noise_multiplier: float) -> float:
    # Three digits are shown, and a million rounds take minutes on the finest grid; every grid gives an upper bound.
    mechanisms = {NoisySum(claim.sampling_probability, noise_multiplier): claim.rounds}
    return composition.epsilon(mechanisms, claim.delta, tolerance=0.005)


def markdown() -> str:
    """Return both tables as Markdown."""
    lines = [
        "| experiment (Ziller et al.) | printed ε | δ | true ε if the noise were as in their theorems | "
        "**true ε of their noise** |",
        "|:--|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {claim.experiment} | {claim.epsilon:g} | {claim.delta:.2g} | "
        f"{rounded_up(as_claimed(claim), 3)} | **{rounded_up(as_added(claim), 3)}** |"
        for claim in ZILLER
    ]
    lines += [
        "",
        "| printed ε (Riess et al.), read per patient | noise multiplier that it needs | "
        "true ε with the central-limit formula's noise | true ε with half the noise variance in each part |",
        "|--:|--:|--:|--:|",
    ]
    for epsilon in RIESS_EPSILONS:
        noise, limit, half = riess_row(epsilon)
        lines.append(f"| {epsilon:g} | {noise:.4g} | {rounded_up(limit, 5)} | {rounded_up(half, 3)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
