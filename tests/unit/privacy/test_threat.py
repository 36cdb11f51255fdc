"""Threat models: the figure against a server that sees only sums is that of the sums, and nothing else counts on it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from zetadp.base.validation import UserError
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.promise import noise_of_plan
from zetadp.core.settings import TrainingSettings
from zetadp.nn.settings import NetworkSettings
from zetadp.privacy import accounting, gaussian
from zetadp.privacy.calibration import noise_for_epsilon, noise_for_sum
from zetadp.privacy.events import Event, histories
from zetadp.privacy.exposure import Run, over_runs, run_of, seen_by
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.ledger import Attempt, Ledger
from zetadp.privacy.mechanism import SampledGaussian
from zetadp.privacy.statement import run_statement, total_statement
from zetadp.privacy.threat import NodeRelease, effective_noise
from zetadp.privacy.wording import plain_text

DELTA = 1e-3
UNEQUAL = ((4, 2.0), (6, 3.0), (10, 5.0), (12, 12.0))
"""Patients and expected patients of four nodes."""
ROUNDS, TARGET = 20, 8.0


def rounds_of(nodes, sigma, rounds, clip=1.0):
    return [
        Event(f"node-{place}", number, size, expected, clip, NoisySum(expected / size, sigma))
        for number in range(rounds)
        for place, (size, expected) in enumerate(nodes)
    ]


def run(nodes, sigma, rounds=ROUNDS, *, colluding=1, clip=1.0, name="secure"):
    return Run(name, histories(rounds_of(nodes, sigma, rounds, clip)), rounds, colluding=colluding)


def state(of, unit="patient", noise_source="seeded", **changes):
    given = {"weights": dict.fromkeys(of.nodes, 1.0), "target_epsilon": TARGET, **changes}
    return run_statement(replace(of, unit=unit, noise=noise_source), **given)


def total(*runs):
    return total_statement([replace(run, noise="seeded") for run in runs])


@pytest.mark.parametrize("colluding", [1, 2, 3])
def test_the_effective_noise_is_what_the_shipped_mechanism_leaves_in_the_mean_of_unequal_nodes(tmp_path, colluding):
    """Release noise alone, average as the server does without the loudest others, and measure it in contributions."""
    sigma, clip, dimension = 1.7, 0.5, 100_000
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start({})
        messages = []
        for place, (size, expected) in enumerate(UNEQUAL):
            event = Event.poisson(
                f"node-{place}", population=size, expected=expected, noise_multiplier=sigma, clip=clip
            )
            mechanism = SampledGaussian(event, place, seed=5, ledger=ledger)
            draw = mechanism.draw(0)
            ledger.record([draw.event])
            messages.append(mechanism.release(draw, torch.zeros(dimension)))
    found = torch.stack(messages).double().numpy() / len(messages)
    (seen,) = [
        seen_by(run(UNEQUAL, sigma, 1, colluding=colluding, clip=clip), {f"node-{p}": 1.0 for p in range(4)}, "server")
    ]
    for place, (_, expected) in enumerate(UNEQUAL):
        others = sorted((p for p in range(4) if p != place), key=lambda p: found[p].std())
        honest = [place, *others[: 3 - colluding]]
        left = found[honest].sum(axis=0).std()
        (kind,) = seen[f"node-{place}"]
        # Four standard errors of a standard deviation of so many draws.
        assert kind.noise_multiplier == pytest.approx(left / (clip / expected / 4), rel=4 / math.sqrt(2 * dimension))


def test_epsilon_against_sums_is_that_of_two_densities_compared_by_integration():
    """One sampled round of unequal nodes: integrate the hockey-stick divergence between both sums."""
    sigma, place = 0.9, 0
    size, expected = UNEQUAL[place]
    spread = math.sqrt(
        sum((sigma / other) ** 2 for _, other in UNEQUAL) - max((sigma / r) ** 2 for _, r in UNEQUAL[1:])
    )
    step, probability = 1 / expected, expected / size
    here = run(UNEQUAL, sigma, 1)
    seen = seen_by(here, dict.fromkeys(here.nodes, 1.0), "server")[f"node-{place}"]
    claimed = accounting.epsilon(seen, DELTA)

    def divergence(epsilon, first, second):
        def excess(x):
            return max(0.0, first(x) - math.exp(epsilon) * second(x))

        return quad(excess, -12 * spread, step + 12 * spread, limit=2000)[0]

    def without(x):
        return norm.pdf(x, 0, spread)

    def included(x):
        return (1 - probability) * norm.pdf(x, 0, spread) + probability * norm.pdf(x, step, spread)

    def true(epsilon):
        return max(divergence(epsilon, without, included), divergence(epsilon, included, without))

    assert true(claimed) <= DELTA * (1 + 1e-6)
    assert true(0.995 * claimed) > DELTA


def test_full_participation_has_the_closed_form():
    everybody = [(size, float(size)) for size, _ in UNEQUAL]
    stated = state(run(everybody, 3.0))
    expected = []
    for place, (size, _) in enumerate(everybody):
        others = sorted((3.0 / r) ** 2 for p, (r, _) in enumerate(everybody) if p != place)
        noise = size * math.sqrt((3.0 / size) ** 2 + sum(others[:-1]))
        expected.append(gaussian.epsilon(DELTA, math.sqrt(ROUNDS) / noise))
    assert stated["epsilon"] == pytest.approx(max(expected), rel=1e-9)
    assert [node["epsilon"] for node in stated["nodes"].values()] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("colluding", [1, 4, 10])
def test_equal_nodes_share_the_noise_of_one(colluding):
    alone = noise_for_epsilon(TARGET, DELTA, 1.0, ROUNDS)
    shared = noise_for_sum(TARGET, DELTA, [44] * 11, [44.0] * 11, ROUNDS, colluding)
    assert shared == pytest.approx(alone / math.sqrt(11 - colluding), rel=2e-5)
    assert state(run([(44, 44.0)] * 11, shared, colluding=colluding))["epsilon"] <= TARGET


def test_the_worst_of_unequal_nodes_meets_the_target_and_a_little_less_noise_does_not():
    everybody = [(size, float(size)) for size, _ in UNEQUAL]
    sizes, expected = zip(*everybody, strict=True)
    found = noise_for_sum(TARGET, DELTA, sizes, expected, ROUNDS, 2)
    stated = state(run(everybody, found, colluding=2))
    assert 0.999 * TARGET < stated["epsilon"] <= TARGET
    assert state(run(everybody, 0.999 * found, colluding=2))["epsilon"] > TARGET
    assert min(node["epsilon"] for node in stated["nodes"].values()) < 0.9 * TARGET


def test_sampled_nodes_meet_the_target_as_it_is_stated():
    nodes = (NodeConstants("a", 4, 2.0), NodeConstants("b", 8, 2.0))
    run_ = RunName("linear", "mine", f"{TARGET:g}", 0)
    plan = Plan(run_, NetworkSettings("linear"), TrainingSettings(5), nodes, delta=DELTA)
    summed = replace(plan, threat="secure_aggregation", colluding=1)
    found = noise_of_plan(summed)
    # With one of two nodes colluding, the other has its own noise alone.
    assert found == noise_of_plan(plan)
    assert 0.99 * TARGET < state(run([(4, 2.0), (8, 2.0)], found, 5))["epsilon"] <= TARGET
    assert noise_of_plan(replace(summed, run=replace(run_, epsilon="inf"))) == 0.0


def test_the_figures_stand_in_the_order_of_what_is_seen():
    secure = state(run([(44, 44.0)] * 11, 2.0, colluding=3))
    figures = {name: row["epsilon"] for name, row in secure["audiences"].items()}
    assert figures["reader"] < figures["node"] < figures["server"] < figures["messages"]
    alone = gaussian.epsilon(DELTA, math.sqrt(ROUNDS) / 2.0)
    assert figures["messages"] == secure["threat"]["epsilon_single_messages"] == pytest.approx(alone, rel=1e-9)
    local = state(run([(44, 44.0)] * 11, 2.0, colluding=None))
    assert local["epsilon"] == figures["messages"]
    assert list(local["audiences"]) == ["server", "node", "reader"]


def test_a_statement_says_what_is_assumed_and_what_holds_without():
    secure = state(run([(44, 44.0)] * 11, 2.0, colluding=3))
    text = plain_text(secure)
    for part in ("honest but curious", "none is implemented here", "3 of the 11 nodes", "other 8", "single messages"):
        assert part in text
    assert secure["guarantee"] == "simulated"
    # Also noise that nobody can repeat leaves the messages open.
    assert state(run([(44, 44.0)] * 11, 2.0), noise_source="os")["guarantee"] == "simulated"
    assert "One trusted holder has all data" in plain_text(
        state(Run("c", histories([Event("central", 0, 4, 4.0, 1.0, NoisySum(1.0, 2.0))]), 1))
    )
    assert "Neither the server" in plain_text(state(run([(4, 4.0)] * 2, 2.0, colluding=None)))


def test_totals_and_earlier_trainings_count_single_messages():
    nodes = [(44, 44.0)] * 11
    secure, local = run(nodes, 2.0), run(nodes, 9.0, colluding=None, name="local")
    together = total(secure, local)
    alone = gaussian.epsilon(DELTA, math.sqrt(ROUNDS / 2.0**2 + ROUNDS / 9.0**2))
    assert together["private_rows"]["epsilon"] == pytest.approx(alone, rel=1e-9)
    assert together["single_messages"]["runs"] == ["secure"]
    assert "single messages" in plain_text(together)
    assert total(local)["single_messages"] is None
    assert over_runs([secure], DELTA) == over_runs([run(nodes, 2.0, colluding=None)], DELTA)
    again = state(secure, earlier=[secure])["earlier_attempts"]
    assert again["epsilon_together"] == pytest.approx(gaussian.epsilon(DELTA, math.sqrt(2 * ROUNDS) / 2.0), rel=1e-9)


def test_a_round_that_was_released_twice_is_not_hidden_by_other_nodes():
    nodes = [(44, 44.0)] * 11
    events = rounds_of(nodes, 2.0, 2)
    replayed = Run("secure", histories([*events, *events[:11]]), 2, colluding=1)
    noise = effective_noise([NodeRelease(1, 44, 2.0)] * 11, 0, "server", 1)
    mu = math.sqrt(2 / 2.0**2 + 1 / noise**2)
    assert state(replayed)["epsilon"] == pytest.approx(gaussian.epsilon(DELTA, mu), rel=1e-9)


def test_a_ledger_tells_the_threat_model_of_its_run():
    declared = {"training": {"rounds": 3}, "unit": "patient", "delta": DELTA, "noise": "seeded"}
    header = {**declared, "threat": "secure_aggregation", "colluding": 2}
    attempt = Attempt(header, rounds_of([(4, 4.0)] * 4, 2.0, 3))
    assert (run_of("x", attempt).threat, run_of("x", attempt).colluding) == ("secure_aggregation", 2)
    plain = Attempt(declared, attempt.events)
    assert (run_of("x", plain).threat, run_of("x", plain).colluding) == ("local", None)
    for colluding in (0, 4, 1.5):
        with pytest.raises(UserError, match="from 1 to 3 colluding nodes"):
            run_of("x", Attempt({**header, "colluding": colluding}, attempt.events))


def test_more_than_all_others_cannot_collude():
    nodes = [NodeRelease(1, 24, 2.0)] * 3
    assert effective_noise(nodes, 0, "server", 2) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="from 0 to 2"):
        effective_noise(nodes, 0, "server", 3)
    assert np.isclose(effective_noise(nodes, 0, "messages", 2), 2.0)


def test_two_records_of_one_person_are_not_composed_where_both_lie_in_one_sum():
    everybody = [(40, 40.0)] * 4
    noise = noise_for_sum(TARGET, DELTA, [40] * 4, [40.0] * 4, ROUNDS, 1)
    stated = state(run(everybody, noise), unit="record")
    # Under one and the same noise two contributions add up to twice the length: mu doubles.
    true = gaussian.epsilon(DELTA, 2 * gaussian.mu(stated["epsilon"], DELTA))
    assert all(row["epsilon"] >= true for row in stated["records_of_one_person"])
    assert not any("exposures add up" in text for text in stated["does_not_cover"])
    alone = state(run(everybody, noise, colluding=None), unit="record")
    assert stated["records_of_one_person"] == alone["records_of_one_person"]


@pytest.mark.parametrize("colluding", [None, 1])
def test_a_training_without_noise_says_that_nothing_is_hidden(colluding):
    stated = state(run(UNEQUAL, 0.0, colluding=colluding))
    assert "nothing is hidden" in stated["threat"]["assumes"]
    assert not any(word in plain_text(stated) for word in ("hides its own", "suffice"))
