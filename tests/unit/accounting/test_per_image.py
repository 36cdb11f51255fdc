"""A guarantee per image: what is drawn, and that a patient is never charged as if they had one image only."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom, norm
from training_builder import TINY, Held, items_each, records, train_run

import zetadp.training.round
from zetadp.account.attempts import read_ledger
from zetadp.account.exposure import Run, over_runs, run_of
from zetadp.account.statement import run_statement, total_statement
from zetadp.accounting import composition, gaussian
from zetadp.accounting.events import Event, histories
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.masked import MaskedSum
from zetadp.accounting.threat import Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.mechanism.clipping import clipped_sums
from zetadp.training.settings import Performance, TrainingSettings

DELTA, IMAGES = 1e-3, 20


def run(p, sigma, rounds=4, *, images=IMAGES, patients=5, name="images"):
    population = patients * (images or 1)
    events = [Event("node-01", number, population, p * population, 1.0, NoisySum(p, sigma)) for number in range(rounds)]
    return Run(name, histories(events), rounds, images=images)


def state(of, unit="patient", **changes):
    given = {"target_epsilon": 8.0, **changes}
    return run_statement(replace(of, unit=unit, noise="seeded"), **given)


def total(*runs):
    return total_statement([replace(run, noise="seeded") for run in runs])


def hockey_stick(epsilon, p, sigma, images):
    """Return delta of one round by integrating over the sum, in both directions."""
    drawn = np.arange(images + 1)
    chances = binom.pmf(drawn, images, p)

    def included(x):
        return float((chances * norm.pdf(x, drawn, sigma)).sum())

    def without(x):
        return float(norm.pdf(x, 0, sigma))

    def delta(first, second):
        def excess(x):
            return max(0.0, first(x) - math.exp(epsilon) * second(x))

        return quad(excess, -10 * sigma, images + 10 * sigma, limit=500, points=list(range(0, images, 2)))[0]

    return max(delta(included, without), delta(without, included))


@pytest.mark.parametrize(("p", "sigma"), [(0.02, 1.0), (0.2, 4.0)])
def test_a_patients_epsilon_is_that_of_all_images_by_integration(p, sigma):
    stated = state(run(p, sigma, 1))
    true = stated["of_all_images"]["epsilon"]
    assert hockey_stick(true, p, sigma, IMAGES) <= DELTA * (1 + 1e-6)
    assert hockey_stick(0.9 * true, p, sigma, IMAGES) > DELTA
    assert true > 2 * stated["epsilon"]


def test_totals_take_the_patient_and_never_the_image():
    images, patients = run(1.0, 30.0), run(1.0, 5.0, images=None, name="patients")
    together = total(images, patients)
    mu = math.sqrt(4 * (IMAGES / 30.0) ** 2 + 4 / 5.0**2)
    assert together["private_rows"]["spent"] == pytest.approx(gaussian.epsilon(DELTA, mu), rel=1e-9)
    # The same five patients stand behind both, so one node's exposures add up rather than the worst of each.
    assert list(over_runs([images, patients], DELTA)) == ["node-01"]
    assert together["of_all_images"]["runs"] == ["images"]
    assert together["private_rows"]["trade_off"] is None
    assert "all images" in together.text
    again = state(images, earlier=[images])["earlier_attempts"]["spent"]
    assert again == pytest.approx(gaussian.epsilon(DELTA, math.sqrt(8) * IMAGES / 30.0), rel=1e-9)


def test_a_statement_is_per_image_and_prints_the_patients_figure_beside_it():
    stated = state(run(1.0, 30.0))
    assert (stated["unit"], stated["epsilon"]) == ("image", pytest.approx(gaussian.epsilon(DELTA, 2 / 30.0), rel=1e-9))
    true = gaussian.epsilon(DELTA, IMAGES * 2 / 30.0)
    whole = {"unit": "patient", "images": IMAGES, "epsilon": pytest.approx(true, rel=1e-9)}
    assert stated["of_all_images"] == whole
    assert "per image and protects no patient" in stated.text
    assert state(run(1.0, 30.0, images=None))["of_all_images"] is None
    without = state(run(1.0, 0.0))
    assert (without["guarantee"], without["of_all_images"]["epsilon"]) == ("none", "inf")
    # In a masked sum all images of a patient are at one node, under the noise of all shares.
    population, kind = 5 * IMAGES, MaskedSum(0.05, 2.0, 3)
    events = [Event(f"node-{n}", r, population, 0.05 * population, 1.0, kind) for r in range(4) for n in range(4)]
    summed = state(Run("sums", histories(events), 4, threat="masked_sums", sums=Sums(1), images=IMAGES))
    noise = 2.0 * math.sqrt(3)
    assert summed["epsilon"] == composition.epsilon({NoisySum(0.05, noise): 4}, DELTA)
    assert summed["of_all_images"]["epsilon"] == composition.epsilon({NoisySum(0.05, noise, IMAGES): 4}, DELTA)


RUN = RunName("x", "federated", Target(8), 0)


def test_training_draws_clips_and_records_every_image_by_itself(tmp_path):
    data = records(4, images_per_class=2)
    images = items_each(data)
    plan = Held("node-01", [[record] for record in range(4)], 4 * images, 6.0, 0.5, images)
    settings = TrainingSettings(rounds=3, images_per_patient=4)
    paths = {"ledger_path": tmp_path / "ledger.jsonl", "checkpoint_path": tmp_path / "run.partial"}
    trained = train_run(RUN, TINY, settings, [plan], data, None, **paths, performance=Performance(chunk=8))
    assert trained.not_finite == 0
    (attempt,) = read_ledger(paths["ledger_path"])
    found = run_of("x", attempt)
    assert (found.images, found.unit) == (images, "patient")
    assert {(e.population, e.sampling_probability) for e in attempt.events} == {(4 * images, 6 / (4 * images))}


@pytest.mark.parametrize(("everybody", "expected"), [(False, (1, 1)), (True, (1, 8))])
def test_exact_noise_takes_one_image_a_pass_unless_all_are_drawn_always(tmp_path, monkeypatch, everybody, expected):
    """A contribution must not depend, not even in its last bits, on which other images were drawn."""
    taken = []

    def noted(contribution, drawn, *, chunk, **more):
        taken.append((drawn.items.shape[1], chunk))
        return clipped_sums(contribution, drawn, chunk=chunk, **more)

    monkeypatch.setattr(zetadp.training.round, "clipped_sums", noted)
    data = records(2)
    images = items_each(data)
    drawn = 2.0 * images if everybody else 4.0
    plan = Held("node-01", [[record] for record in range(2)], 2 * images, drawn, 1.0, images)
    settings = TrainingSettings(rounds=2, images_per_patient=4, noise="os")
    paths = {"ledger_path": tmp_path / "ledger.jsonl", "checkpoint_path": tmp_path / "run.partial"}
    train_run(RUN, TINY, settings, [plan], data, None, **paths, performance=Performance(chunk=8))
    assert taken == [expected] * 2


@pytest.mark.parametrize("units", [2, 6, 80])
@pytest.mark.parametrize("sigma", [0.67885, 1.0373, 3.0359, 6.0718])
def test_units_that_are_always_drawn_compose_with_rounds_of_others(units, sigma):
    """Noise at which the accountant's own search for a mixture of one component fails."""
    always = {NoisySum(1.0, sigma, units): 3}
    exact = gaussian.epsilon(DELTA, units * math.sqrt(3) / sigma)
    found = composition.epsilon({**always, NoisySum(1e-9, 50.0): 1}, DELTA, tolerance=0.02)
    assert exact * (1 - 1e-9) <= found <= 1.03 * exact
