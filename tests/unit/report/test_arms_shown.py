"""Masked sums and guarantees per image are named wherever a run that has them is shown, and not where another is."""

from __future__ import annotations

import matplotlib as mpl
import pytest
from run_builder import write_run

from zetadp.base.storage import read_json
from zetadp.brain import BrainSequences
from zetadp.nn.models import NetworkSettings
from zetadp.report import figures, rendering, tables
from zetadp.report.accuracyfigure import accuracy_against_epsilon, compare_networks
from zetadp.report.modelcard import model_card
from zetadp.report.notes import notes
from zetadp.report.provenance import Cohort

NETWORK = NetworkSettings().to_json()
COHORT = Cohort("cohort", simulated=True)
THREAT = {
    "model": "masked_sums",
    "sums": {"colluding": 2, "missing": 0, "spare": 0, "shares": 3},
    "assumes": "All that is assumed.",
    "epsilon_single_messages": 41.5,
}
SHOWN = {
    "masked sums": {
        "privacy": {"arm": "secure", "threat": THREAT},
        "column": ("threat", {"local", "masked_sums"}),
        "table": "| secure (masked sums) |",
        "note": ("Arm secure", "41.5 at ε = 3", "at most 2 nodes"),
        "figures": "masked sums",
        "card": ("secure (masked sums)", "against anyone who could undo the masks: 41.5", THREAT["assumes"]),
        "absent": "federated (mas",
    }
} | {
    f"images of {whole}": {
        "privacy": {
            "network": "mine",
            "unit": "image",
            "of_all_images": {"unit": "patient", "images": 80, "epsilon": whole},
        },
        "column": ("epsilon_per_patient", {3.0, float(whole)}),
        "table": "| mine (per image) |",
        "note": ("Network mine: ε is per image", f"{shown} at ε = 3"),
        "figures": "(ε per image)",
        "card": (f"per patient at δ = 0.001 is {shown}.",),
        "absent": "of those who gave no data",
    }
    for whole, shown in ((220.58, "220.6"), (6285.1, "6286 (no useful guarantee)"), ("inf", "none"))
}


def card_of(folder) -> str:
    metrics, words = read_json(folder / "metrics.json"), BrainSequences().words
    return model_card(metrics["run"], NETWORK, read_json(folder / "privacy.json"), metrics, COHORT, words)


@pytest.mark.parametrize("what", SHOWN)
def test_it_is_named_wherever_the_run_is_shown_and_nowhere_else(tmp_path, what):
    case = SHOWN[what]
    folder, other = (write_run(tmp_path, {"a": 12, "b": 15}, **privacy) for privacy in (case["privacy"], {}))
    runs, alone = tables.collect([folder, other]), tables.collect([folder])
    table, below = tables.table1(runs, COHORT), notes(runs, COHORT)
    column, values = case["column"]
    assert set(table[column]) == values
    printed = rendering.to_markdown(rendering.accuracy_sheet(table, below))
    assert all(cell in printed for cell in (case["table"], "| complex | federated |"))
    (said,) = [note for note in below if note.startswith(case["note"][0])]
    assert all(words in said for words in case["note"])
    own, plain = map(card_of, (folder, other))
    assert all(words in own for words in case["card"])
    assert not any(words in plain for words in case["card"])
    assert case["absent"] not in own
    for figure in (
        accuracy_against_epsilon(tables.table1(alone, COHORT), COHORT),
        compare_networks(tables.table1(alone, COHORT), COHORT),
        figures.confusion_matrices(alone, "c"),
        figures.training_curves(tables.histories(alone), "c"),
    ):
        texts = [" ".join(text.get_text().split()) for text in figure.findobj(mpl.text.Text)]
        assert any(case["figures"] in text for text in texts)
        assert not any(case["absent"] in text for text in texts)
