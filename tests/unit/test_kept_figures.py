"""Figures that benchmarks draw of the kept tables can be read in grey, and mix no guarantees and no exponents."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs/results"


def benchmark(name: str):
    """Import a benchmark, as Python does that runs it."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


phantom_full, growth = (benchmark(name) for name in ("phantom_full", "growth"))
TABLE = pd.read_csv(RESULTS / "phantom_full.csv", dtype={"epsilon": str}, comment="#")


def texts(figure):
    return [" ".join(text.get_text().split()) for text in figure.findobj(mpl.text.Text)]


def marked(panel):
    """Return the lines with a marker: bars and levels have none."""
    return [line for line in panel.get_lines() if line.get_marker() not in ("None", "_", "|", "")]


@pytest.fixture(scope="module")
def drawn():
    figures = {
        "accuracy": phantom_full.accuracy_figure(TABLE),
        "weights": phantom_full.weights_figure(TABLE),
        "growth": growth.drawn(pd.read_csv(RESULTS / "benchmarks/growth.csv", comment="#")),
    }
    for figure in figures.values():
        FigureCanvasAgg(figure).draw()
    return figures


@pytest.mark.parametrize("name", ["accuracy", "weights", "growth"])
def test_it_has_a_title_and_nothing_is_cut_off(drawn, name):
    figure = drawn[name]
    assert figure.get_suptitle()
    ink = figure.get_tightbbox(figure.canvas.get_renderer())
    assert min(ink.x0, ink.y0) >= -0.01
    assert (np.array([ink.x1, ink.y1]) <= figure.get_size_inches() + 0.01).all()


@pytest.mark.parametrize("name", ["accuracy", "weights"])
def test_lines_differ_without_colour(drawn, name):
    for panel in drawn[name].axes:
        looks = [(line.get_marker(), str(line._unscaled_dash_pattern)) for line in marked(panel)]
        assert len(looks) >= 3
        assert len({marker for marker, _ in looks}) == len(set(looks)) == len(looks)


@pytest.mark.parametrize("name", ["accuracy", "weights"])
def test_epsilon_is_named_with_its_unit_delta_and_noise(drawn, name):
    assert any("ε per patient, δ = 0.001, simulated noise" in text for text in texts(drawn[name]))
    assert any("1 to 10 seeds" in text for text in texts(drawn[name]))


def test_what_holds_per_image_has_no_place_among_epsilons_per_patient(drawn):
    by_image = TABLE[TABLE["unit"] == "image"]
    heights = {round(y, 4) for panel in drawn["accuracy"].axes for line in marked(panel) for y in line.get_ydata()}
    assert len(heights) > 20
    assert not heights & {round(mean, 4) for mean in by_image["mean"]}
    (said,) = [text for text in texts(drawn["accuracy"]) if "per image" in text]
    assert "56.7 % at ε = 8 per image, which is ε = 631.3 per patient" in said


def test_the_public_head_alone_is_shown_beside_what_was_trained_from_it(drawn):
    panel = drawn["accuracy"].axes[0]
    (level,) = [line for line in panel.get_lines() if line.get_label() == phantom_full.PUBLIC_HEAD]
    assert set(level.get_ydata()) == {TABLE.loc[TABLE["network"] == "public_head", "mean"].item()}


def test_each_exponent_of_growth_says_what_it_is_of_and_is_the_slope_that_is_drawn(drawn):
    table = pd.read_csv(RESULTS / "benchmarks/growth.csv", comment="#")
    panels = drawn["growth"].axes
    axes = list(dict.fromkeys(table["axis"]))
    for place, axis in enumerate(axes):
        time, memory = panels[place], panels[place + len(axes)]
        fitted, last, of_memory = table.loc[
            table["axis"] == axis, ["time_exponent", "last_time_exponent", "memory_exponent"]
        ].iloc[0]
        assert time.get_title(loc="left").endswith(f"time: exponent {fitted:.2f},\nlast step {last:.2f}")
        assert memory.get_title(loc="left") == f"memory: exponent {of_memory:.2f}"
        for panel, power in ((time, fitted), (memory, of_memory)):
            slope = np.polyfit(*(np.log(values) for values in panel.get_lines()[1].get_data()), 1)[0]
            assert slope == pytest.approx(power, abs=1e-3)


def test_tables_take_the_public_head_from_the_workflows_own_table():
    table = pd.DataFrame(
        {"network": ["complex", "pretrained"], "public_start": [float("nan"), 88.75], "unit": ["patient", "patient"]}
    )
    row = phantom_full.public_head(table)
    assert (row["mean"], row["method"], row["epsilon"]) == (88.75, phantom_full.PUBLIC_HEAD, "0")
