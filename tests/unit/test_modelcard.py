import json

import pytest
from run_builder import write_run

from zetadp.modelcard import model_card
from zetadp.storage import read_json

NETWORK = {"family": "complex", "parameters": 93636}


def card(tmp_path, *, label="simulated cohort", right=None, **run):
    folder = write_run(tmp_path, right or {"a": 12, "b": 16}, **run)
    metrics = read_json(folder / "metrics.json")
    return model_card(metrics["run"], NETWORK, read_json(folder / "privacy.json"), metrics, label)


def test_card_holds_what_a_user_must_know(tmp_path):
    text = card(tmp_path, does_not_cover=["the search for settings"])
    for needed in (
        "FLAIR, T1w, T1gd, T2w",
        "By image: 70.00 %",
        "95% interval over patients: 60.00 to 80.00 %",
        "A guess reaches 25.00 %",
        "| FLAIR | 100.00 |",
        "Simulated, protecting nobody: a statement.",
        "ε = 3, δ = 0.001, per patient",
        "node-01: 30 patients, ε = 3",
        "Not covered: the search for settings.",
        "Not for clinical use",
        "zetadp predict MODEL VOLUME",
        "complex/federated/eps-3/seed-0",
        "parameters: 93636",
        "torch: 9.8.7",
        "commit: unknown",
        "Decathlon",
    ):
        assert needed in text
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    names = ["Task", "Data", "Privacy", "Accuracy", "Limits", "Use", "Provenance"]
    assert headings == [f"## {name}" for name in names]


def test_a_simulated_cohort_is_said_to_be_one_and_a_real_one_is_not(tmp_path):
    assert "results on a simulation" in card(tmp_path)
    real = card(tmp_path, label="Decathlon brain task", noise_source="os", statement="Training was private.")
    assert "simulat" not in real.lower()
    assert "other scanners" in real


def test_no_epsilon_is_printed_below_its_figure(tmp_path):
    folder = write_run(tmp_path, {"a": 12, "b": 16}, epsilon="4")
    nodes = {"node-01": {"population": 30, "epsilon": 2.50012}}
    privacy = read_json(folder / "privacy.json") | {"epsilon": 3.98012, "epsilon_rdp": 4.30021, "nodes": nodes}
    metrics = read_json(folder / "metrics.json")
    text = model_card(metrics["run"], NETWORK, privacy, metrics, "cohort")
    assert "(ε = 3.981, δ = 0.001, per patient)" in text
    assert "as a check: 4.301" in text
    assert "node-01: 30 patients, ε = 2.501" in text


def test_the_plain_words_are_those_of_the_statements_curve(tmp_path):
    text = card(tmp_path, trade_off={"false_alarms": [0.01, 0.1], "misses": [0.625, 0.4]})
    assert "wrongly accuses 1% of those who gave no data, finds at most 37.5%" in text


@pytest.mark.parametrize(
    ("epsilon", "reason"), [("inf", "get no noise"), ("unclipped", "neither clipped nor get noise")]
)
def test_without_noise_the_card_claims_nothing(tmp_path, epsilon, reason):
    text = card(tmp_path, epsilon=epsilon)
    assert "no privacy guarantee" in text
    assert reason in text
    assert "finds at most" not in text


def test_one_test_patient_gives_no_interval(tmp_path):
    assert "(no interval: it needs at least two test patients)" in card(tmp_path, right={"a": 12})


def test_missing_precision_is_a_dash(tmp_path):
    folder = write_run(tmp_path, {"a": 12, "b": 16})
    metrics = read_json(folder / "metrics.json")
    metrics["per_class"]["T1w"]["precision"] = None
    privacy = json.loads((folder / "privacy.json").read_text())
    assert "| – |" in model_card(metrics["run"], NETWORK, privacy, metrics, "cohort")
