import io
import json
import math
from xml.etree import ElementTree as ET

import pandas as pd
import pytest
from matplotlib.text import Text
from run_builder import write_run

from zetadp.base.epsilon import Target
from zetadp.base.tables import Sheet
from zetadp.report.accuracyfigure import accuracy_against_epsilon
from zetadp.report.notes import notes
from zetadp.report.provenance import Cohort
from zetadp.report.rendering import (
    Section,
    accuracy_sheet,
    page_html,
    to_csv,
    to_markdown,
    to_text,
)
from zetadp.report.resultpage import describe_result, write_report
from zetadp.report.tables import collect, table1

SIMULATED, REAL = (Cohort("cohort", simulated=simulated) for simulated in (True, False))
TOTAL = {"statement": "4 private runs together: (4.05, 0.001) & more."}


@pytest.fixture
def runs(tmp_path):
    folders = [
        write_run(tmp_path, {"a": 8 + seed, "b": 14 + 2 * seed}, arm=arm, epsilon=epsilon, seed=seed)
        for arm, epsilon in (("federated", "1"), ("federated", "inf"), ("central", "1"))
        for seed in (0, 1)
    ]
    return collect(folders)


@pytest.fixture
def sheet(runs):
    return accuracy_sheet(table1(runs, SIMULATED), notes(runs, SIMULATED, TOTAL))


def test_cells_hold_mean_spread_and_interval(sheet):
    assert sheet.columns == ("network", "arm", "ε = 1", "ε = ∞")
    rows = {row[:2]: row[2:] for row in sheet.rows}
    # The two seeds have 22 and 25 of 40 images right.
    assert rows["complex", "federated"] == ("58.8 ± 5.3 (42.5 to 75.0)", "58.8 ± 5.3 (42.5 to 75.0)")
    # Nobody asked for runs of one holder without noise.
    assert rows["complex", "central"] == ("58.8 ± 5.3 (42.5 to 75.0)", "")


def test_the_network_that_is_declared_first_leads_and_public_weights_have_a_column(tmp_path):
    folders = [
        write_run(tmp_path, {"a": 8, "b": 14}, network="head", arm=arm, public=0.5) for arm in ("sums", "federated")
    ]
    table = table1(collect([*folders, write_run(tmp_path, {"a": 8, "b": 14}, network="complex")]), REAL)
    sheet = accuracy_sheet(table, intervals=False)
    assert sheet.columns == ("network", "arm", "public weights", "ε = 3")
    assert sheet.rows == (
        ("head", "sums", "50.0", "55.0"),
        ("head", "federated", "50.0", "55.0"),
        ("complex", "federated", "", "55.0"),
    )


@pytest.mark.parametrize("render", [to_markdown, to_text])
def test_every_format_holds_every_number_and_note(sheet, render):
    text = render(sheet).replace("&amp;", "&")
    for row in sheet.rows:
        for cell in row[2:]:
            assert cell in text
    assert "results on a simulation" in text
    assert "no privacy guarantee" in text
    assert "0.001" in text
    assert "per patient" in text
    assert "(4.05, 0.001) & more." in text


def test_notes_say_what_applies_and_nothing_else(runs):
    private = runs[runs["epsilon"] == Target(1)]
    text = " ".join(notes(private.assign(noise_source="os", unit="record"), REAL))
    assert "per record" in text
    assert "operating system" in text
    for absent in ("simulat", "∞", "nclipped", "seeded"):
        assert absent not in text
    text = " ".join(notes(runs.assign(epsilon=Target(math.inf, clipped=False)), REAL))
    assert "neither clipped nor get noise" in text
    # Without a private run no noise was drawn from any source.
    assert "seeded" not in text


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("name", ["brains", "unsimulated-brains", "volumes-of-a-phantom"])
def test_no_name_of_a_cohort_says_whether_it_is_simulated(runs, name, simulated):
    cohort = Cohort(f"cohort {name}, 40 + 2 patients", simulated=simulated)
    table, below = table1(runs, cohort), notes(runs, cohort)
    assert set(table["cohort"]) == {f"{'simulated ' * simulated}cohort {name}, 40 + 2 patients"}
    assert ("these are results on a simulation, not on patients" in " ".join(below)) is simulated
    assert describe_result(table, simulated=cohort.simulated).startswith("On a simulated cohort") is simulated
    title = f"against ε, {'simulated ' * simulated}cohort {name}"
    texts = [text.get_text() for text in accuracy_against_epsilon(table, cohort).findobj(Text)]
    assert any(title in " ".join(text.split()) for text in texts)


def test_csv_comes_back_in_full_precision(runs):
    table = table1(runs, Cohort("cohort, 40 + 2 patients", simulated=True))
    text = to_csv(table, notes(runs, SIMULATED, TOTAL))
    back = pd.read_csv(io.StringIO(text), comment="#", converters={"epsilon": Target.named})
    pd.testing.assert_frame_equal(back, table, check_exact=True, check_dtype=False)
    assert "# The cohort is simulated" in text


HOSTILE = '<script>alert(1)</script> \\input{/etc/passwd}|\n=HYPERLINK("http://x")\x1b[2J'


def test_no_format_takes_a_name_for_anything_else_than_a_name():
    sheet = Sheet(HOSTILE, (HOSTILE, "b"), ((HOSTILE, "1"),), (HOSTILE,))
    section = Section(HOSTILE, [HOSTILE], tables=[sheet], points=[HOSTILE])
    pages = [
        page_html(HOSTILE, [section]),
        to_markdown(sheet),
    ]
    assert not [page for page in pages if "<script" in page]
    for page in (*pages, to_text(sheet)):
        assert "\x1b" not in page
        assert not [line for line in page.splitlines() if line.lstrip("|# ").startswith("=")]


def test_a_cell_of_csv_is_no_formula_and_is_read_whole():
    names = ["=cmd|calc", "@x", "-2+3", "P#1", "a\nb", "-1.5", "+0.2"]
    text = to_csv(pd.DataFrame({"patient": names, "n": range(len(names))}), ("a note",))
    assert [line[0] for line in text.splitlines()[2:5]] == ["'"] * 3
    back = pd.read_csv(io.StringIO(text), comment="#", dtype={"patient": str})
    assert list(back["n"]) == list(range(len(names)))
    assert list(back["patient"][-2:]) == ["-1.5", "+0.2"]


def test_a_table_of_some_of_the_runs_says_so(runs):
    said = "6 of the experiment's 13 runs. The others follow, and the total grows with them."
    assert said in notes(runs, REAL, TOTAL, 13)
    assert not [note for note in notes(runs, REAL, TOTAL, 6) if "others follow" in note]


SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="400" height="90"/>'
TOTAL_OF = {
    "seeded": (
        {"private_rows": {"runs": 2, "epsilon": 4.041}, "all_rows": {"without_noise": ["one"]}},
        "The 2 private runs together cost each patient at most ε = 4.041 at δ = 0.001; the noise is seeded, so this is "
        "a simulation and protects nobody; 1 run has no noise and no guarantee.",
    ),
    "os": (
        {"private_rows": {"runs": 1, "epsilon": 0.9999}, "all_rows": {"without_noise": []}},
        "The one private run costs each patient at most ε = 0.9999 at δ = 0.001.",
    ),
    "none": (
        {"private_rows": {"runs": 0, "epsilon": 0}, "all_rows": {"without_noise": ["one", "two"]}},
        "2 runs have no noise and no guarantee.",
    ),
}
RUNS_OF = {
    "seeded": [("head", "1"), ("head", "8"), ("head", "inf"), ("complex", "inf")],
    "os": [("head", "1")],
    "none": [("linear", "inf"), ("complex", "unclipped")],
}
REACHED = {
    "seeded": "On a simulated cohort, the network head reaches a test accuracy of 92.5 % (95% interval 90.0 to 95.0) "
    "at ε = 1 per patient; its public weights alone reach 81.2 %, and without noise the same network reaches 92.5 %.",
    "os": "The network head reaches a test accuracy of 92.5 % (95% interval 90.0 to 95.0) at ε = 1 per patient; its "
    "public weights alone reach 81.2 %.",
    "none": "The best network, linear, reaches a test accuracy of 92.5 % (95% interval 90.0 to 95.0) without noise. "
    "No run has a privacy guarantee.",
}


@pytest.mark.parametrize("noise", RUNS_OF)
def test_the_page_opens_with_what_the_networks_reach_and_then_what_it_cost(tmp_path, noise):
    cohort = SIMULATED if noise == "seeded" else REAL
    folders = [
        write_run(tmp_path, {"a": 18, "b": 19}, network=network, epsilon=epsilon, noise_source=noise, **start)
        for network, epsilon in RUNS_OF[noise]
        for start in [{"public": 0.8125} if network == "head" else {}]
    ]
    runs, (rows, cost) = collect(folders), TOTAL_OF[noise]
    below = notes(runs, cohort, {"statement": "Two runs together: a statement."})
    table, text, total = (tmp_path / name for name in ("table1.csv", "privacy_total.txt", "privacy_total.json"))
    table.write_text(to_csv(table1(runs, cohort), ("command: snakemake", "commit: 123", *below)))
    text.write_text("The total.\n  - indented <b>\n")
    total.write_text(json.dumps({**rows, "unit": "patient", "delta": 0.001, "noise_source": noise}))
    pictures = [tmp_path / f"{name}.svg" for name in ("accuracy", "confusion")]
    for picture in pictures:
        picture.write_text(SVG)
    files = {"table": table, "total": total, "text": text, "pictures": pictures, "page": tmp_path / "report.html"}
    write_report(**files, name="mine", simulated=cohort.simulated)
    page = ET.parse(tmp_path / "report.html").getroot()
    shown = " ".join("".join(page.find("{*}body").itertext()).split())
    assert shown.startswith(f"Results of the experiment mine Result {REACHED[noise]} Cost in privacy {cost}")
    for words in ("92.5", "Two runs together: a statement.", "- indented <b>", "commit: 123"):
        assert words in shown
    assert len(page.findall(".//{*}img")) == 2
    assert shown.index("All networks") < shown.index("Privacy of all runs") < shown.index("The total.")
