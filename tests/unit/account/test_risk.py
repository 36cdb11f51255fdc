"""What releases let anybody learn of one person, and the page that says it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ledger_builder import poisson
from scipy.stats import norm

from zetadp.account.declaration import Declaration
from zetadp.account.ledger import Ledger
from zetadp.account.risk import CANDIDATES, Risk
from zetadp.accounting import composition, gaussian
from zetadp.accounting.kinds import NoisySum
from zetadp.audit.candidates import attack_candidates
from zetadp.audit.detection import Claim, Errors
from zetadp.audit.inversion import KIND
from zetadp.audit.suite import frame
from zetadp.audit.trainings import Audited, AuditResult
from zetadp.base.epsilon import percent_up
from zetadp.cli.commands import main
from zetadp.report.rendering import to_csv
from zetadp.report.riskpage import Evidence, headline, risk_figure, write_risk

PROBABILITY, SIGMA, ROUNDS = 0.5, 6.0, 20


def write_ledger(folder, *attempts, noise="os", images=None, name="ledger", unit="patient"):
    """Record attempts, each a list of (expected of 10 patients, noise multiplier, rounds)."""
    with Ledger(folder / f"{name}.jsonl") as ledger:
        for expected, sigma, rounds in attempts:
            training = {"rounds": rounds, "clip": 1.0}
            declared = Declaration(
                run={"epsilon": "8"}, training=training, noise=noise, cohort_unit=unit, delta=1e-3, images=images
            )
            ledger.start(declared)
            first = poisson("clinic", population=10, expected=expected, noise_multiplier=sigma, clip=1.0)
            ledger.record([first])
            for number in range(1, rounds):
                ledger.record([replace(first, round=number)])
    return folder / f"{name}.jsonl"


@pytest.mark.parametrize(("unit", "several"), [("patient", False), ("record", True)])
def test_the_page_says_where_a_person_with_several_records_is_protected_less(unit, several, tmp_path):
    ledger = write_ledger(tmp_path, (5, SIGMA, 2), unit=unit)
    assert ("who has 10 candidate records, and" in headline(Risk.of(ledger))) == several
    assert main(["risk", str(ledger)]) == 0
    (page,) = tmp_path.rglob("risk.html")
    assert ("A person with several records is protected less than this." in page.read_text()) == several


def test_the_page_on_privacy_rounds_odds_up_as_bounds():
    """For one Gaussian: the best attack finds Phi(Phi^-1(a) + mu), and decides rightly with Phi(mu / 2)."""
    page = (Path(__file__).parents[3] / "docs/privacy.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+ %) \| (.+ %) \| (.+ %) \| (.+ %) \|$", page, flags=re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "3", "8"]
    for epsilon, *shown in rows:
        mu = gaussian.mu(float(epsilon), 1e-3)
        finds = [norm.cdf(norm.ppf(alarms) + mu) for alarms in (0.01, 0.05, 0.1)]
        assert shown == [percent_up(share) for share in (*finds, norm.cdf(mu / 2))]


@pytest.mark.parametrize(("epsilon", "shares"), [(1, (0.186, 0.026, 0.0034)), (8, (0.789, 0.404, 0.157))])
def test_of_candidates_under_one_gaussian_the_printed_shares_are_named_rightly(epsilon, shares, tmp_path):
    """Hayes et al. (2023) for Gaussians: Phi(Phi^-1(kappa) + mu); figures computed independently."""
    mu = gaussian.mu(epsilon, 1e-3)
    risk = Risk.of(write_ledger(tmp_path, (10, 1 / mu, 1)))
    found = [risk.right_guesses(number, 1e-3) for number in (10, 100, 1000)]
    assert found == pytest.approx(shares, rel=0.03)
    assert found == pytest.approx([norm.cdf(norm.ppf(1 / n) + mu) for n in (10, 100, 1000)])


def test_no_guess_of_a_sampled_gaussian_is_right_more_often_than_the_bound(tmp_path):
    """The best guess, by likelihood, of which of n orthogonal contributions was in a sum that may have drawn nobody."""
    ledger = write_ledger(tmp_path, (5, 1.0, 1))
    risk, random = Risk.of(ledger), np.random.default_rng(0)
    for candidates in (2, 10, 100):
        sums = random.standard_normal((20_000, candidates))
        sums[:, 0] += random.random(20_000) < PROBABILITY
        right = (sums.argmax(axis=1) == 0).mean()
        bound = risk.right_guesses(candidates, 1e-3)
        assert 1 / candidates < right < bound + 4 * math.sqrt(0.25 / 20_000)
        # What it is worth: without noise nearly every drawn contribution would be named.
        assert bound < 0.9


@pytest.mark.parametrize("drawn", [1.0, PROBABILITY])
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_odds_rise_by_more_than_the_stated_factor_with_probability_delta_at_most(tmp_path, drawn, delta):
    """The law of the privacy loss of one Gaussian is known. The exponential of epsilon is too small a factor."""
    sigma = 2.0
    risk = Risk.of(write_ledger(tmp_path, (10 * drawn, sigma, 1)))

    def chance(factor: float) -> float:
        reached = sigma**2 * math.log((factor - 1 + drawn) / drawn) + 0.5
        return (1 - drawn) * norm.sf(reached / sigma) + drawn * norm.sf((reached - 1) / sigma)

    assert chance(risk.odds(delta)) <= delta < chance(math.exp(risk.epsilon(delta)))
    assert risk.odds(delta) < 2 * math.exp(risk.epsilon(delta))


def test_each_figure_is_for_the_node_where_it_is_worst(tmp_path):
    """At one delta a node that adds much noise for everybody costs more, at a smaller delta one that draws few."""
    kinds = {"everybody": (10.0, 2.5747), "few": (0.2, 0.51012)}
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start(Declaration(cohort_unit="patient", delta=1e-3, training={"rounds": 1}, noise="os"))
        ledger.record(
            [
                poisson(name, population=10, expected=expected, noise_multiplier=sigma, clip=1.0)
                for name, (expected, sigma) in kinds.items()
            ]
        )
    risk = Risk.of(tmp_path / "ledger.jsonl")
    alone = [{NoisySum(expected / 10, sigma): 1} for expected, sigma in kinds.values()]
    costs = {delta: [composition.epsilon(each, delta) for each in alone] for delta in (1e-3, 1e-6)}
    assert costs[1e-3][0] > costs[1e-3][1]
    assert costs[1e-6][0] < costs[1e-6][1]
    assert {delta: risk.epsilon(delta) for delta in costs} == {delta: max(each) for delta, each in costs.items()}
    curves = [composition.trade_off(each, [0.001, 0.1]) for each in alone]
    assert risk.misses([0.001, 0.1]) == pytest.approx([curves[1][0], curves[0][1]])


def test_without_noise_in_any_attempt_nothing_is_promised(tmp_path):
    risk = Risk.of(write_ledger(tmp_path, (10, 0.0, 2), (10, 5.0, 2)))
    assert risk.guarantee == "none"
    assert risk.epsilon(1e-3) == risk.odds(1e-3) == math.inf
    assert [risk.right_guesses(number, 1e-3) for number in CANDIDATES] == [1.0] * len(CANDIDATES)
    assert headline(risk).startswith("Nothing limits")


def test_of_attempts_that_were_chosen_after_results_a_page_has_no_curve(tmp_path):
    """The curve is that of declared releases. An epsilon that holds whenever somebody stops bounds the guesses."""
    ledger = write_ledger(tmp_path, (5, SIGMA, ROUNDS), (5, SIGMA, ROUNDS))
    risk, exposure = Risk.of(ledger), {NoisySum(PROBABILITY, SIGMA): 2 * ROUNDS}
    assert risk.misses([0.1]) is None
    assert risk.epsilon(1e-3) == composition.epsilon_any_time(exposure, 1e-3) > composition.epsilon_rdp(exposure, 1e-3)
    assert risk.right_guesses(10, 1e-3) == pytest.approx(math.exp(risk.epsilon(1e-3)) / 10 + 1e-3)
    write_risk(risk, tmp_path, str(ledger), Evidence())
    assert "is not a promise" in (tmp_path / "risk.html").read_text()


def test_of_many_images_a_person_epsilon_bounds_the_guesses(tmp_path):
    risk = Risk.of(write_ledger(tmp_path, (5, 60.0, 4), images=2))
    assert risk.misses([0.1]) is None
    bound = math.exp(risk.epsilon(1e-3)) / 10 + 1e-3
    assert 0.1 < risk.right_guesses(10, 1e-3) == pytest.approx(bound)
    assert risk_figure(risk).axes


def audit(folder):
    """Return the files of an audit with one attack that stands and one that refuted a claim."""
    folder.mkdir()
    once = Claim({NoisySum(1.0, 1.0): 1})
    results = [
        AuditResult(replace(Audited(name), power=power), once, Errors(wrong, wrong, 1466, 1466, 0.999))
        for name, wrong, power in (("one round", 450, 0.02), ("training", 9, 0.99))
    ]
    (folder / "audit.csv").write_text(to_csv(frame(results), ("a note",)))
    return folder


def test_a_page_names_the_delta_of_an_attack_and_commands_that_run(tmp_path):
    """The ledger declares another delta than the experiment that was attacked."""
    ledger = write_ledger(tmp_path, (5, SIGMA, ROUNDS))
    found = attack_candidates("net", np.eye(2), [8], [2], 1e-5)
    message = ["1 patient, 1 image", "net", "direction (IGA)", 8.0, 1e-5, 7, 0.5, 0.1]
    rebuilt = pd.DataFrame([message], columns=[*KIND, "delta", "steps", "ssim", "nmse"])
    write_risk(
        Risk.of(ledger),
        tmp_path,
        str(ledger),
        Evidence({"candidates": found, "inversion": rebuilt}, {"a picture": tmp_path / "risk.svg"}),
    )
    text = (tmp_path / "risk.html").read_text()
    assert text.count("δ = 1e-05") == 2
    (command,) = re.findall(r"zetadp (ledger [^<`]*)", text)
    assert main(command.split()) == 0


def test_the_command_takes_the_folder_of_a_run_or_a_ledger(tmp_path, capsys):
    run = tmp_path / "results/x/runs/head/central/eps-8/seed-0"
    run.mkdir(parents=True)
    write_ledger(run, (5, SIGMA, ROUNDS), noise="seeded")
    assert main(["risk", str(run)]) == 1  # with its register, it is an account
    assert "folder of ledgers" in capsys.readouterr().err
    for name in ("register", "secret"):
        (run / name).unlink(missing_ok=True)
    (run / "privacy.json").write_text('{"name": "head central"}')
    audit(tmp_path / "results/x/audit")
    assert main(["risk", str(run)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("This was a simulation and protects nobody.")
    text = (run / "risk.html").read_text()
    assert "head central" in text
    assert "refuted a claim" in text
    assert "1 of them had too few trials" in text
    assert main(["risk", str(run / "ledger.jsonl"), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/risk.html").exists()
    assert main(["risk", str(tmp_path / "nothing")]) == 1
    assert "Expected a finished run" in capsys.readouterr().err
    assert main(["risk", str(run), "--output", str(run / "ledger.jsonl")]) == 1
    assert "Cannot write" in capsys.readouterr().err
