"""Masked sums are named wherever an arm that has them is shown."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from run_builder import write_run

from zetadp.base.storage import read_json
from zetadp.nn.models import NetworkSettings
from zetadp.report import figures, rendering, tables
from zetadp.report.figures import accuracy_against_epsilon, confusion_matrices
from zetadp.report.modelcard import model_card
from zetadp.report.notes import notes
from zetadp.tasks.brain_sequences import BrainSequences

NETWORK = asdict(NetworkSettings())
LABEL = "simulated cohort"
WORDS = BrainSequences().words(NETWORK)
SHOWN = "secure (masked sums)"
THREAT = {
    "model": "masked_sums",
    "sums": {"colluding": 2, "missing": 0, "spare": 0, "shares": 3},
    "assumes": "All that is assumed.",
    "epsilon_single_messages": 41.5,
}


@pytest.fixture
def folders(tmp_path):
    right = {"a": 12, "b": 15}
    return [write_run(tmp_path, right, arm="secure", threat=THREAT), write_run(tmp_path, right)]


def card_of(folder):
    metrics = read_json(folder / "metrics.json")
    return model_card(metrics["run"], NETWORK, read_json(folder / "privacy.json"), metrics, LABEL, WORDS)


def texts(figure):
    found = figure.findobj(match=lambda artist: hasattr(artist, "get_text"))
    return [" ".join(text.get_text().split()) for text in found]


def test_tables_name_it_and_print_what_holds_without_it(folders):
    runs = tables.collect(folders)
    table = tables.table1(runs, "simulated cohort")
    assert dict(zip(table["arm"], table["threat"], strict=True)) == {
        "federated": "local",
        "secure": "masked_sums",
    }
    below = notes(runs, "simulated cohort")
    (said,) = [note for note in below if "Arm secure" in note]
    assert "41.5 at ε = 3" in said
    assert "at most 2 node(s)" in said
    printed = rendering.to_markdown(rendering.accuracy_sheet(table, below))
    assert f"| {SHOWN} |" in printed
    assert "| federated |" in printed


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"arm": "secure", "threat": THREAT}, SHOWN),
        ({"unit": "image", "of_all_images": {"unit": "patient", "images": 80, "epsilon": 600.0}}, "(ε per image)"),
    ],
)
def test_figures_name_the_protocol_and_the_weaker_unit(tmp_path, privacy, said):
    folders = [write_run(tmp_path, {"a": 12, "b": 15}, **privacy)]
    runs = tables.collect(folders)
    drawn = (
        accuracy_against_epsilon(tables.table1(runs, LABEL), "c"),
        confusion_matrices(runs, "c"),
        figures.training_curves(tables.histories(runs), "c"),
        figures.accuracy_per_class(runs, "c"),
    )
    for figure in drawn:
        assert any(said in text for text in texts(figure))
        assert not any("federated (mas" in text for text in texts(figure))


def test_a_model_card_names_it_and_prints_what_holds_without_it(folders):
    secure, federated = map(card_of, folders)
    assert SHOWN in secure.splitlines()[0]
    assert "against anyone who could undo the masks: 41.5" in secure
    assert THREAT["assumes"] in secure
    assert "single message" not in federated


@pytest.mark.parametrize(
    ("whole", "shown"), [(220.58, "220.6"), (6285.1, "6286 (no useful guarantee)"), ("inf", "none")]
)
def test_a_guarantee_per_image_is_called_one_beside_the_figure_of_a_patient(tmp_path, whole, shown):
    privacy = {"unit": "image", "of_all_images": {"unit": "patient", "images": 80, "epsilon": whole}}
    folder = write_run(tmp_path, {"a": 12, "b": 15}, network="mine", **privacy)
    runs = tables.collect([folder, write_run(tmp_path, {"a": 12, "b": 15})])
    table = tables.table1(runs, "simulated cohort")
    assert dict(zip(table["network"], table["epsilon_per_patient"], strict=True)) == {
        "complex": 3.0,
        "mine": float(whole),
    }
    below = notes(runs, "simulated cohort")
    assert any("Network mine: ε is per image" in note and f"{shown} at ε = 3" in note for note in below)
    assert "| mine (per image) |" in rendering.to_markdown(rendering.accuracy_sheet(table, below))
    card = card_of(folder)
    assert f"per patient at δ = 0.001 is {shown}." in card
    assert "of those who gave no data" not in card
