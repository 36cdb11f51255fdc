"""Honest code passes; each fault is found by the audit that is made for it, and by the stated number of trials."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from contributing import clipped_sums

from zetadp.audit.detection import Trials, trials_for_curve
from zetadp.audit.one_round import CANARY, CLASSES, SILENT, Audited, Stub, audit_one_round, one_round_rates
from zetadp.base.tensors import Layout
from zetadp.nn.settings import NetworkSettings
from zetadp.privacy import accounting
from zetadp.privacy.kinds import NoisySum

TRIALS = trials_for_curve({NoisySum(1.0, 1.0): 1}, one_round_rates(1.0, math.sqrt(0.5)))


def contributions(stub, clip: float) -> np.ndarray:
    """Return what the code for patients makes of each record, shape (record, dimension)."""
    images = stub.records.inputs.unflatten(0, (-1, CLASSES))
    labels = stub.records.targets.view(-1, CLASSES)
    result = clipped_sums(
        stub.model,
        Layout.of(stub.model),
        images,
        labels,
        torch.arange(len(images)),
        count=len(images),
        bound=clip,
        chunk=8,
    )
    return result.sums.double().numpy()


@pytest.mark.parametrize("clip", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("direction", ["general", "imaginary"])
def test_the_canary_reaches_the_clip_in_its_direction_but_at_saturated_weights_and_others_are_zero(clip, direction):
    stub = Stub.of(clip=clip, direction=direction)
    with stub.saturated():
        np.testing.assert_array_equal(contributions(stub, clip)[CANARY], 0)
    found = contributions(stub, clip)
    np.testing.assert_allclose(found[CANARY], clip * stub.direction, atol=1e-5 * clip)
    np.testing.assert_array_equal(found[SILENT], 0)
    assert np.linalg.norm(stub.direction) == pytest.approx(1)
    real, imaginary = np.linalg.norm(stub.direction.reshape(-1, 2), axis=0)
    assert imaginary > 0.5
    assert real > 0.5 if direction == "general" else real == 0


@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_every_node_has_the_audited_mechanism(noise):
    plan = Audited(1.5, 2.0, 0.5, 4, noise).plan(Trials(1), 3, NetworkSettings("linear"))
    assert [(node.population, node.expected, node.noise_multiplier) for node in plan.nodes] == [(4, 2.0, 1.5)] * 3
    assert (plan.clip, plan.exact) == (2.0, noise == "os")


@pytest.mark.parametrize(
    ("direction", "audited"),
    [
        ("general", Audited()),
        ("imaginary", Audited(clip=2.0)),
        ("general", Audited(clip=2.0, population=3)),
        ("general", Audited(0.5)),
        ("general", Audited(noise="os")),
    ],
    ids=str,
)
def test_honest_code_passes_and_the_attack_sees_all_there_is_to_see(tmp_path, direction, audited):
    result = audit_one_round(tmp_path, Trials(TRIALS), audited, direction=direction)
    assert result.claimed == 1 / audited.noise_multiplier
    assert result.passed
    # Standard errors of the estimate, at mu 1 and 2. Exact noise is another each time.
    error, many = 0.06 if result.claimed == 1 else 0.07, 5 if audited.noise == "os" else 4
    assert result.estimate == pytest.approx(result.claimed, abs=many * error)
    # The threshold is half way, in whatever units the messages come.
    assert result.errors.alpha.share == pytest.approx(result.errors.beta.share, abs=many * math.sqrt(0.5 / TRIALS))
    assert (result.errors.trials_in, result.errors.trials_out) == (TRIALS, TRIALS)


def test_honest_sampling_passes_and_is_judged_by_its_own_curve(tmp_path):
    result = audit_one_round(tmp_path, Trials(TRIALS), Audited(probability=0.5, population=2))
    assert result.claimed == accounting.epsilon({NoisySum(0.5, 1.0): 1}, 1e-3)
    assert result.mechanisms == {NoisySum(0.5, 1.0): 1}
    assert 0.4 * result.claimed < result.measured < result.claimed
    expected = one_round_rates(0.5, 1.0)
    assert (result.errors.alpha.share, result.errors.beta.share) == pytest.approx(
        expected, abs=4 * math.sqrt(0.25 / TRIALS)
    )


@pytest.mark.parametrize(
    ("how", "mu"),
    [({"view": "nodes", "nodes": 3}, math.sqrt(2 / 3)), ({"view": "rounds"}, math.sqrt(1 / 2))],
    ids=["nodes", "rounds"],
)
def test_differences_of_independent_noise_show_less_than_the_claim(tmp_path, how, mu):
    result = audit_one_round(tmp_path, Trials(TRIALS), **how)
    assert result.passed
    assert result.estimate == pytest.approx(mu, abs=0.25)


def test_noise_that_is_divided_twice_is_found_where_the_divisor_is_not_one(tmp_path, faulty):
    faulty(lambda right, event: right / event.expected)
    assert not audit_one_round(tmp_path, Trials(100), Audited(population=3)).passed


def test_a_gradient_that_is_not_clipped_is_found(tmp_path, monkeypatch):
    import zetadp.privacy.clipping

    def all_as_they_are(gradients, bound):
        finite = torch.isfinite(sum(g.sum(dim=1) for g in gradients))
        return finite.float(), finite

    monkeypatch.setattr(zetadp.privacy.clipping, "clip_factors", all_as_they_are)
    assert not audit_one_round(tmp_path, Trials(100)).passed


def test_trials_with_and_without_the_canary_are_independent_and_repeatable(tmp_path):
    results = []
    for place, seed in enumerate((5, 5, 6)):
        (tmp_path / str(place)).mkdir()
        results.append(audit_one_round(tmp_path / str(place), Trials(200, seed)).errors)
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("wrong", [{"view": "sideways"}, {"view": "nodes"}, {"noise": "pink"}], ids=str)
def test_what_cannot_be_audited_is_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="Expected"):
        audit_one_round(tmp_path, Trials(10), Audited(noise=wrong.pop("noise", "seeded")), **wrong)
