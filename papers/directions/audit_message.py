"""Attack one person's participation under directions and under Gaussian noise, at equal epsilon.

    python -m papers.directions.audit_message

The best possible test distinguishes a message with one person from the same message without this person. The measured
epsilon is a lower confidence bound. It reaches the claimed epsilon only if the data are the worst case of the
mechanism. For Gaussian noise, every gradient of the clipping norm is a worst case. For directions, the worst case is a
person who reverses the sum of all others. The gradients are those of simulated patients at the first weights of
training. Writes audit.csv and audit.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import product

import numpy as np
import pandas as pd
import torch

from papers.directions.accounting import concentration_for_epsilon
from papers.directions.mechanism import Direction
from papers.directions.sampler import draw_direction
from papers.experiments import parser_of, write_table
from papers.sizes import by_size
from zetadp.accounting import gaussian
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.seeded_noise import noisy_mean
from zetadp.audit.candidates import gradients, of_candidates
from zetadp.audit.detection import Claim, count_errors
from zetadp.base.epsilon import Target
from zetadp.base.randomness import Purpose, stream
from zetadp.base.runfolder import RunName
from zetadp.base.tables import Sheet
from zetadp.nn.settings import NetworkSettings
from zetadp.report.provenance import origin
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.settings import TrainingSettings

SEED, PATIENTS, TRIALS, DELTA, CONFIDENCE = 53, 10, by_size(5000, smoke=50), 1e-3, 0.95
EPSILONS = (1.0, 8.0)
MECHANISMS = ("gaussian", "direction")
NETWORK = NetworkSettings(widths=(8, 16), convolutions=1, head="pooled", groups=4)
OTHERS = {
    "opposite, half as long": "the others' sum is opposite to the person's gradient and half as long",
    "none": "the person is alone; without them the message is a direction around a fixed one",
    "nine patients": "nine other patients",
}


@lru_cache
def people() -> torch.Tensor:
    """Return the patients' clipped gradients in the first round, shape (patient, number), in units of the clip."""
    how = TrainingSettings(1, images_per_patient=8, clip=1e-3)
    plan = Plan(RunName("net", "federated", Target(math.inf), SEED), NETWORK, how, (NodeConstants("any", 1, 1),))
    return gradients(of_candidates(plan, PATIENTS), None, 32)[0]


def sums(others: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sums without and with the first patient."""
    person = people()[0]
    without = {"opposite, half as long": -person / 2, "none": 0 * person, "nine patients": people()[1:].sum(dim=0)}[
        others
    ]
    return without, without + person


def attacked(mechanism: str, others: str, epsilon: float) -> dict[str, object]:
    """Attack one kind of message, and return a row of the table."""
    without, inside = sums(others)
    if mechanism == "direction":
        kappa = concentration_for_epsilon(epsilon, probability=1.0, dimension=len(without), releases=1, delta=DELTA)
        claim = {Direction(1.0, kappa, len(without)): 1}
        first = torch.eye(1, len(without))[0]
        centres = [vector / vector.norm() if float(vector.norm()) else first for vector in (without, inside)]
    else:
        sigma = 1 / gaussian.mu(epsilon, DELTA)
        claim, centres = {NoisySum(1.0, sigma): 1}, [without, inside]
    middle, towards = (centres[0] + centres[1]) / 2, (centres[1] - centres[0]).double()
    scores = []
    for present, centre in enumerate((without, inside)):
        random = stream(
            SEED, Purpose.NOISE, list(OTHERS).index(others), round(epsilon), present, MECHANISMS.index(mechanism)
        )
        seen = (
            draw_direction(centre, kappa, random)
            if mechanism == "direction"
            else noisy_mean(centre, sigma, 1.0, random)
            for _ in range(TRIALS)
        )
        scores.append(np.array([float((vector - middle).double() @ towards) for vector in seen]))
    errors, claimed = count_errors(scores[0], scores[1], 0.0, confidence=CONFIDENCE), Claim(claim, DELTA)
    cosine = torch.nn.functional.cosine_similarity(*centres, dim=0)
    return {
        "mechanism": mechanism,
        "others": others,
        "epsilon": epsilon,
        "measured": claimed.epsilon_of(errors.alpha.upper, errors.beta.upper),
        "estimate": claimed.epsilon_of(errors.alpha.share, errors.beta.share),
        "cosine": float(cosine),
        "dimension": len(without),
    }


def sheet(frame: pd.DataFrame) -> Sheet:
    """Lay the table out."""
    lines = [
        (row["others"], row["mechanism"], f"{row['epsilon']:g}", f"{row['measured']:.2f}", f"{row['estimate']:.2f}")
        for row in frame.to_dict("records")
    ]
    notes = (
        f"Measured: lower confidence bound of {CONFIDENCE:.0%} on ε at δ = {DELTA:g}, from {TRIALS} messages with the "
        "person and as many without. Estimate: the same without a margin. The attacker knows all gradients.",
        "Others: " + "; ".join(f"{name}: {meaning}" for name, meaning in OTHERS.items()) + ".",
        f"Gradients of {frame['dimension'].iloc[0]:,} real numbers, all clipped.",
    )
    columns = ("others", "mechanism", "claimed ε", "measured", "estimate")
    return Sheet("What one message shows of one person, at equal ε", columns, tuple(lines), notes, names=2)


def main() -> None:
    """Attack, and write the table."""
    arguments = parser_of(__doc__, "directions").parse_args()
    rows = []
    for others, epsilon, mechanism in product(OTHERS, EPSILONS, MECHANISMS):
        rows.append(attacked(mechanism, others, epsilon))
        print(rows[-1], flush=True)
    frame, source = pd.DataFrame(rows), origin(f"{PATIENTS} public patients, simulated for the attack", str(SEED))
    write_table(arguments.output / "audit", frame, sheet(frame), source)


if __name__ == "__main__":
    main()
