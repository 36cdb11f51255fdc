import pytest
from run_builder import write_run

from zetadp.base.storage import read_json
from zetadp.brain import BrainSequences
from zetadp.nn.settings import FAMILIES, NetworkSettings
from zetadp.report.modelcard import model_card
from zetadp.report.notes import notes
from zetadp.report.provenance import Cohort
from zetadp.report.tables import collect

SIMULATED = Cohort("cohort", simulated=True)
NETWORK = NetworkSettings(widths=(16, 32, 64)).to_json()


def card(tmp_path, *, cohort=SIMULATED, right=None, settings=NETWORK, measured=None, changed=None, **run):
    """Return the card of a run; ``changed`` and further keywords change its statement, ``measured`` its metrics."""
    folder = write_run(tmp_path, right or {"a": 12, "b": 16}, **run)
    metrics = read_json(folder / "metrics.json") | (measured or {})
    return model_card(
        metrics["run"], settings, read_json(folder / "privacy.json") | (changed or {}), metrics, cohort,
        BrainSequences().words,
    )  # fmt: skip


def test_card_holds_what_a_user_must_know_and_no_epsilon_below_its_figure(tmp_path):
    nodes = {"node-01": {"population": 30, "epsilon": 2.50012}}
    figures = {"epsilon": 3.98012, "epsilon_rdp": 4.30021, "nodes": nodes}
    figures["laws"] = ["Law of noise signs: Each node sends signs. Its proof: a paper."]
    text = card(tmp_path, epsilon="4", does_not_cover=["the search for settings"], changed=figures)
    for needed in (
        "FLAIR, T1w, T1gd, T2w",
        "By image: 70.00 % (95% interval over patients: 60.00 to 80.00 %)",
        "Guessing reaches 25.00 %",
        "| FLAIR | 100.00 |",
        "Simulated, protecting nobody: a statement.",
        "results on a simulation",
        "(ε = 3.981, δ = 0.001, per patient)",
        "by the Renyi accountant, an independent and usually larger upper bound: 4.301",
        "node-01: 30 patients, ε = 2.501",
        "Not covered: the search for settings.",
        "Law of noise signs: Each node sends signs. Its proof: a paper.\n\n",
        "Not for clinical use",
        "zetadp predict MODEL VOLUME",
        "complex/federated/eps-4/seed-0",
        "widths: [16, 32, 64]",
        "commit: 0a1b2c3d4e5f-dirty",
    ):
        assert needed in text
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert headings == ["Task", "Data", "Privacy", "Accuracy", "Limits", "Use", "Provenance"]


def test_all_trainings_of_a_run_lead_on_the_card(tmp_path):
    curve = {"false_alarms": [0.001, 0.01, 0.05], "misses": [0.8, 0.5, 0.2]}
    together = {"number": 1, "epsilon_together": 12.7612, "seeded": 0, "trade_off": curve}
    text = card(tmp_path, changed={"epsilon": 7.9981, "earlier_attempts": together})
    assert "sees every model of all trainings of this run" in text
    assert "finds at most 50.0 % of those who did" in text
    assert "(ε = 12.77, δ = 0.001, per patient; the last training alone ε = 7.999)" in text
    unknown = card(tmp_path, changed={"epsilon": 7.9981, "earlier_attempts": together | {"trade_off": None}})
    assert "ε = 12.77 at δ = 0.001 per patient, for all trainings of this run together" in unknown
    assert "finds at most" not in unknown


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (NetworkSettings(), ["widths", "convolutions", "groups", "head", "trained", "hidden", "activation"]),
        (NetworkSettings("head", "study", components=8, taper=0.5), ["components", "start", "taper"]),
        (NetworkSettings("linear", "image"), []),
    ],
)
def test_the_card_names_the_settings_that_the_network_uses(tmp_path, settings, named):
    given = settings.to_json()
    text = card(tmp_path, settings=given)
    for name in given.keys() - {"family", "domain", "transform", "start"}:
        assert (f"- network, {name}: {given[name]}" in text) == (name in named)


def test_the_card_describes_every_network_and_says_which_weights_are_public(tmp_path):
    for family, (domains, known) in FAMILIES.items():
        for domain in domains:
            assert "The network is a " in card(tmp_path, settings=NetworkSettings(family, domain).to_json())
        if "start" in known:
            text = card(tmp_path, settings=NetworkSettings(family, domain, start="public").to_json())
            assert "cohort, from public weights. What is public was learnt from simulated items only." in text


def test_a_real_cohort_is_not_called_simulated(tmp_path):
    cohort = Cohort("Decathlon brain task decathlon", simulated=False)
    real = card(tmp_path, cohort=cohort, noise_source="os", statement="Training was private.")
    assert "simulat" not in real.lower()
    assert "other scanners" in real


@pytest.mark.parametrize(
    ("epsilon", "reason"), [("inf", "get no noise"), ("unclipped", "neither clipped nor get noise")]
)
def test_without_noise_the_card_claims_nothing(tmp_path, epsilon, reason):
    text = card(tmp_path, epsilon=epsilon)
    assert "no privacy guarantee" in text
    assert reason in text
    assert "finds at most" not in text


def test_the_card_shows_the_metric_of_its_task(tmp_path):
    measured = {"metric": "area", "area": 0.9123, "items_called": "recordings", "images": 40}
    text = card(tmp_path, measured=measured | {"area_interval": {"low": 0.8, "high": 0.95, "level": 0.95}})
    assert "- area: 91.23 % (95% interval over patients: 80.00 to 95.00 %)" in text
    assert "- Accuracy: 70.00 %." in text
    assert "Tested on 40 recordings of 2 patients" in text
    assert "By image" not in text


@pytest.mark.parametrize(
    ("public", "worse"), [(0.8125, True), (0.7, False), (0.70000003, False), (0.0, False), (None, False)]
)
def test_the_card_and_the_tables_say_what_public_weights_reach_and_when_training_made_it_worse(public, worse, tmp_path):
    text = card(tmp_path, right={"a": 12, "b": 16}, public=public)  # 70 %
    assert ("Training made it worse" in text) == worse
    alone = "public weights alone, before any private training"
    assert (alone in text) == (public is not None)
    assert public is None or f"{alone}: {100 * public:.2f} %" in text
    below = notes(collect([tmp_path / "runs/complex/federated/eps-3/seed-0"]), SIMULATED)
    assert any("training made it worse, 70.0 % after 81.2 %" in note for note in below) == worse
    assert "(no interval: it needs at least two test patients)" in card(tmp_path, right={"a": 12})
