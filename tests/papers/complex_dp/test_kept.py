"""What is kept of Ziller et al.'s experiments agrees with its scenarios, its searches and the page."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from papers.complex_dp.ecg.encoder import BeatEncoder
from papers.complex_dp.encoder import WHITENING
from papers.experiments import configuration
from papers.join import declared_joins
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum

FOLDER = Path(__file__).parents[3] / "papers/complex_dp"
PAGE = (FOLDER / "README.md").read_text()
JOINS = declared_joins("complex_dp")


def rows(table: str) -> list[dict[str, str]]:
    lines = (FOLDER / "results" / table).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize(
    ("table", "scenario", "probability", "noise", "rounds"),
    [
        ("phase_mnist/table", "phase_mnist", 0.01, 1.1 / 2**0.5, 1000),
        ("phase_mnist/table", "mnist", 0.01, 1.1, 1000),
        ("speech_commands/table", "speech_commands", 0.009, 1 / 2**0.5, 556),
    ],
)
def test_what_the_paper_prints_stands_at_what_its_noise_gives(table, scenario, probability, noise, rounds):
    """Its code makes the noise of complex networks too small by the root of two."""
    printed = {each["epsilon"] for each in JOINS[table]["printed"] if each["scenario"] == scenario}
    (epsilon,) = printed - {"inf"}
    assert float(epsilon) == pytest.approx(composition.epsilon({NoisySum(probability, noise): rounds}, 1e-5), abs=0.006)


def test_what_phase_mnist_compares_is_trained_alike():
    configured = [configuration(name) for name in ("phase_mnist", "phase_mnist_once", "mnist")]
    heads = [config.networks["head"] for config in configured]
    assert heads[0] == heads[1] == heads[2]
    trainings = [config.networks["mlp"].training for config in (configured[0], configured[2])]
    assert trainings[0] == trainings[1]


DIGITS = {"learned": "64", "whitening": "0.5", "scattering": "150", "averaged": "0.5"}
BEATS = {"components": str(BeatEncoder.recipe["components"]), "whitening": f"{WHITENING:g}"}


@pytest.mark.parametrize(
    ("scenario", "network", "table", "searched", "tried", "metric"),
    [
        ("phase_mnist", "head", "phase_mnist", DIGITS, 12, "accuracy"),
        ("ecg", "head", "ecg", BEATS, None, "mean"),
        ("speech_commands", "head", "speech_commands", {"unit": "clip", "epsilon": "1.47"}, 10, "auc"),
        ("speech_commands_speakers", "head", "speech_commands", {"unit": "speaker", "epsilon": "8"}, 10, "auc"),
        ("speech_commands_speakers", "slow_head", "speech_commands", {"unit": "speaker", "epsilon": "1"}, 10, "auc"),
    ],
)
def test_the_chosen_steps_are_the_best_of_their_search(scenario, network, table, searched, tried, metric):
    chosen, every = configuration(scenario).networks[network].training, rows(f"{table}/search.csv")
    own = [row for row in every if searched.items() <= row.items()]
    best = max(own, key=lambda row: float(row[metric]))
    assert tried in (None, len(own))
    for key, name in {"rounds": "rounds", "clip": "clip", "learning_rate": "rate", "momentum": "momentum"}.items():
        assert chosen[key] == float(best[name])
    if table == "ecg":  # where features were searched too
        assert max(float(row[metric]) for row in every) == float(best[metric])
