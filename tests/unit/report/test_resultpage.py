"""The page with an experiment's result: true sentences, and the command that writes it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from run_builder import write_run

from zetadp.base.storage import write_json
from zetadp.report import rendering, tables
from zetadp.report.notes import notes
from zetadp.report.resultpage import reached, spent, write_report

LABEL = "simulated cohort phantom, 3 + 2 patients"
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="400" height="90"><rect width="400" height="90" fill="{}"/></svg>'


def total(private=2, epsilon=5.4321, broken=(), noise="seeded"):
    """Return what the page reads of ``privacy_total.json``."""
    rows = {"runs": private, "epsilon": epsilon if private else "inf"}
    found = {"private_rows": rows, "all_rows": {"without_noise": list(broken)}, "unit": "patient", "delta": 1e-3}
    return {**found, "noise_source": noise, "statement": "Two runs together: a statement."}


def write_experiment(root, label=LABEL, spent_in_total=None):
    """Write the files of an experiment that the page is made from."""
    folders = [
        write_run(root, {"a": 18, "b": 19}, network="head", epsilon="1"),
        write_run(root, {"a": 9, "b": 10}, network="scratch", epsilon="1"),
        write_run(root, {"a": 20, "b": 20}, network="scratch", epsilon="inf"),
    ]
    runs = tables.collect(folders)
    content = spent_in_total or total(broken=("scratch",))
    table = tables.table1(runs, label)
    (root / "tables").mkdir()
    origin = ("command: snakemake", "commit: 123")
    csv = rendering.to_csv(table, (*origin, *notes(runs, label, content)))
    (root / "tables/table1.csv").write_text(csv)
    (root / "tables/table1.txt").write_text("the table\n")
    write_json(root / "privacy_total.json", content)
    (root / "privacy_total.txt").write_text("The total.\n  - indented <b>\n")
    (root / "figures").mkdir()
    for name, colour in (("accuracy", "navy"), ("confusion", "red")):
        (root / f"figures/{name}.svg").write_text(SVG.format(colour))
    return root


def files_of(folder):
    """Return the files that the page of an experiment is made from."""
    files = {"table": folder / "tables/table1.csv", "total": folder / "privacy_total.json"}
    return {**files, "text": folder / "privacy_total.txt", "pictures": sorted((folder / "figures").glob("*.svg"))}


def table_of(folder):
    return pd.read_csv(folder / "tables/table1.csv", comment="#", dtype={"epsilon": str})


@pytest.fixture
def page(tmp_path):
    folder = write_experiment(tmp_path / "mine")
    write_report(**files_of(folder), page=folder / "report.html", name="mine")
    return folder / "report.html"


def text_of(page) -> str:
    return " ".join("".join(ET.parse(page).getroot().itertext()).split())


def test_the_first_sentences_are_the_figures_of_the_table_and_of_the_total(page):
    assert reached(table_of(page.parent)) == (
        "At ε = 1 per patient, the test accuracy on simulated data is: head (federated) 92.5 %, scratch (federated) "
        "47.5 %."
    )
    text = text_of(page)
    assert "at most ε = 5.433 at δ = 0.001" in text  # rounded up: it is a bound
    assert "protects nobody; 1 run has no noise and no guarantee." in text
    assert text.index("In two sentences") < text.index("Figure and table") < text.index("Privacy of each network")


def test_real_patients_are_not_called_simulated_nor_the_other_way_round(tmp_path):
    folder = write_experiment(tmp_path / "mine", "cohort clinic, 3 + 2 patients", total(noise="os"))
    assert "simulated" not in reached(table_of(folder))
    assert "simulation" not in spent(total(noise="os"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (total(1, 1.0), "Privacy: the one private run costs each patient at most ε = 1 at"),
        (total(2, 1.0, ("a", "b")), "; 2 runs have no noise and no guarantee."),
        (total(0, broken=("a",)), "Privacy: 1 run has no noise and no guarantee."),
    ],
)
def test_the_sentence_on_privacy_counts_runs_with_and_without_noise(given, words):
    assert words in spent(given)


def test_without_private_runs_the_page_says_so(page):
    table = table_of(page.parent)
    assert reached(table[table["epsilon"] == "inf"]).startswith("Without noise, and so without a guarantee, the test")
