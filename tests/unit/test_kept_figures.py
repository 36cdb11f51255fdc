"""The kept figure of growth: nothing is cut off, and each exponent is the slope that is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from benchmarks import growth

TABLE = Path(__file__).parents[2] / "docs/results/benchmarks/growth.csv"


@pytest.fixture(scope="module")
def drawn():
    figure = growth.drawn(pd.read_csv(TABLE, comment="#"))
    FigureCanvasAgg(figure).draw()
    return figure


def test_it_has_a_title_and_nothing_is_cut_off(drawn):
    assert drawn.get_suptitle()
    ink = drawn.get_tightbbox(drawn.canvas.get_renderer())
    assert min(ink.x0, ink.y0) >= -0.01
    assert (np.array([ink.x1, ink.y1]) <= drawn.get_size_inches() + 0.01).all()


def test_each_exponent_of_growth_says_what_it_is_of_and_is_the_slope_that_is_drawn(drawn):
    table = pd.read_csv(TABLE, comment="#")
    panels = drawn.axes
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
