"""Attacks on rows work where they must, and find no more than the accountant allows. All on the shipped path."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from papers.neuromixgdp.membership import RowAttack
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.audit.detection import Claim, count_errors
from zetadp.base.epsilon import Target
from zetadp.own.release import Mixing, release_plan
from zetadp.training.assembly import mixture_of
from zetadp.training.checkpoint import RunFiles
from zetadp.training.holders import LocalHolders
from zetadp.training.loop import train
from zetadp.training.records import LabelledItems
from zetadp.training.task import Classification

PEOPLE, ROWS, TRIALS, COMPONENTS, CLASSES, DELTA = 40, 40, 400, 6, 4, 1e-3


def people() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(PEOPLE, COMPONENTS, generator=random)
    return x / x.norm(dim=1, keepdim=True), torch.arange(PEOPLE) % CLASSES


def plan_of(active: float, degree: float, sigma: float, name: str):
    public = Mixing(PEOPLE, CLASSES, rows=ROWS * TRIALS, degree=degree, active=active)
    plan = release_plan(1, DELTA, public, seed=0, real=True)
    plan = replace(plan.with_noise(sigma), cohort=name)
    return replace(plan, run=replace(plan.run, target=Target(math.inf)))  # a plan with an epsilon has the noise for it


def released(plan, x: torch.Tensor, labels: torch.Tensor, folder) -> torch.Tensor:
    """Return rows as they leave the node."""
    records = LabelledItems(x.to(torch.complex64)[:, None, None], labels)
    files = RunFiles(folder / f"{plan.cohort}.jsonl", folder / f"{plan.cohort}.checkpoint")
    return train(LocalHolders(plan, records, [[[person] for person in range(len(x))]]), files).released


def attacked(active: float, sigma: float, alone: bool, folder, monkeypatch) -> tuple[np.ndarray, np.ndarray, dict]:
    """Return scores of releases without and with person 0, and what was claimed of each."""
    monkeypatch.setattr("zetadp.own.release.make_plan", lambda plan: plan.with_noise(1.0))
    degree = 4.0
    x, labels = people()
    found = []
    for present in (False, True):
        given = x.clone()
        if alone:
            given[1:] = math.nan  # what is not finite contributes nothing
        if not present:
            given[0] = math.nan
        plan = plan_of(active, degree, sigma, f"{alone}-{present}")
        rows = released(plan, given, labels, folder)
        mixture = mixture_of(plan, Classification(CLASSES), COMPONENTS)
        if mixture.schedule is not None:
            rows = rows[torch.from_numpy(mixture.schedule[:, labels[0]])]
        own = mixture(x.to(torch.complex64)[:, None, None, None], labels[:, None])
        rate = degree / PEOPLE / active
        alike = labels == labels[0] if active < 1 else torch.ones(PEOPLE, dtype=torch.bool)
        others = None if alone or active < 1 else own[1:][alike[1:]]
        attack = RowAttack(own[0], rate, degree, sigma * plan.clip, others)
        found.append(attack.scores(rows.view(TRIALS, -1, rows.shape[1])))
    return found[0], found[1], {NoisySum(rate, sigma): int(ROWS * active)}


@pytest.mark.parametrize("active", [1.0, 0.25])
def test_an_attack_on_somebody_alone_reaches_the_claim_and_does_not_pass_it(active, tmp_path, monkeypatch):
    """Both limits hold together with a false alarm of one in a thousand."""
    without, inside, claimed = attacked(active, 1.0, True, tmp_path, monkeypatch)
    errors = count_errors(without, inside, 0.0)
    claim = Claim(claimed, DELTA)
    assert claim.epsilon_of(errors.alpha.upper, errors.beta.upper) <= claim.epsilon
    assert claim.epsilon_of(errors.alpha.lower, errors.beta.lower) >= claim.epsilon
    (least,) = composition.trade_off(claimed, [errors.alpha.share])
    assert errors.beta.share == pytest.approx(least, abs=4 * 0.5 / TRIALS**0.5)
    assert errors.alpha.share + errors.beta.share < 0.9, "an attack that finds nothing would pass as well"


def test_other_people_hide_somebody_in_part(tmp_path, monkeypatch):
    alone = attacked(1.0, 0.5, True, tmp_path, monkeypatch)
    among = attacked(1.0, 0.5, False, tmp_path, monkeypatch)
    seen = [count_errors(without, inside, 0.0) for without, inside, _ in (alone, among)]
    wrong = [errors.alpha.share + errors.beta.share for errors in seen]
    assert wrong[0] < wrong[1] < 0.8
