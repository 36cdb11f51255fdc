"""A deployment is not an experiment: what a configuration may ask of real patients, and how numbers may be written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from zetadp.base.validation import UserError
from zetadp.config.experiment import Config
from zetadp.config.load import load_config, overlay

ROOT = Path(__file__).parents[3]
OWN = """
name: my-hospital
cohort: {name: my-hospital, source: folder, folder: data, train_patients: 20, test_patients: 6, unit: record}
partition: {nodes: 2, validation_patients: 0}
privacy: {noise: os}
"""
ONE = "runs: [{networks: [head], arms: [federated], epsilons: [8], seeds: [0]}]"


def loaded(*texts: str) -> Config:
    """Return the checked configuration of config.yaml with texts laid over it."""
    content = yaml.safe_load((ROOT / "config.yaml").read_text())
    for text in texts:
        overlay(content, yaml.safe_load(text))
    return load_config(content)


def refusal(*texts: str) -> str:
    with pytest.raises(UserError) as refused:
        loaded(*texts)
    return str(refused.value)


def test_real_patients_get_one_run_unless_more_are_written_down():
    loaded(OWN, ONE)
    message = refusal(OWN, "runs: [{networks: [head], arms: [federated], epsilons: [1, 8], seeds: [0]}]")
    assert "runs: " in message
    assert "privacy.trainings" in message


@pytest.mark.parametrize("epsilon", ["inf", "unclipped"])
def test_a_run_without_noise_on_real_patients_needs_a_sentence(epsilon):
    run = f"runs: [{{networks: [head], arms: [federated], epsilons: [{epsilon}], seeds: [0]}}]"
    assert "privacy.without_noise" in refusal(OWN, run)
    loaded(OWN, run, "privacy: {without_noise: I know that this protects nobody}")
