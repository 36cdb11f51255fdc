"""Record your own training loop in a ledger, and print the privacy statement that follows from it."""

import tempfile
from pathlib import Path

import torch

from zetadp.account.book import recorded_runs
from zetadp.account.declaration import Declaration
from zetadp.account.ledger import Ledger
from zetadp.account.statement import total_statement
from zetadp.accounting.calibration import noise_for_epsilon
from zetadp.accounting.events import Event
from zetadp.accounting.kinds import NoisySum

PATIENTS, EXPECTED, ROUNDS, CLIP, EPSILON, DELTA = 200, 20, 30, 1.0, 4, 1e-5
probability = EXPECTED / PATIENTS
sigma = noise_for_epsilon(EPSILON, DELTA, probability, ROUNDS)

values = torch.randn(PATIENTS, 8) + 1  # the loop learns the mean of these rows, one row a patient
mean = torch.zeros(8)
path = Path(tempfile.mkdtemp(prefix="zetadp-")) / "loop.jsonl"
with Ledger(path) as ledger:
    # Torch's generator starts from a seed: the statement will say that the noise is simulated.
    ledger.start(Declaration(cohort_unit="patient", delta=DELTA, noise="seeded", training={"rounds": ROUNDS}))
    for number in range(ROUNDS):
        drawn = values[torch.rand(PATIENTS) < probability]  # each patient by a coin of its own
        steps = drawn - mean
        # One contribution a patient, of norm at most CLIP.
        steps *= (CLIP / steps.norm(dim=1, keepdim=True)).clamp(max=1)
        # Record first, then release: a crash in between must not hide a release.
        ledger.record([Event("here", number, PATIENTS, EXPECTED, CLIP, NoisySum(probability, sigma))])
        mean += (steps.sum(0) + sigma * CLIP * torch.randn(8)) / EXPECTED

print(f"noise multiplier {sigma:.3f}, learned mean {mean.mean():.2f}, ledger: {path}")
print(total_statement(recorded_runs(path))["statement"])
