from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from run_builder import SEQUENCES, write_run

from zetadp import figures
from zetadp.kspace.fourier import to_kspace
from zetadp.kspace.whitening import whiten
from zetadp.tables import collect, collect_histories, table1
from zetadp.validation import UserError

LABEL = "simulated cohort"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    return [
        write_run(root, {"a": 8 + seed, "b": 14 + 2 * seed}, arm=arm, epsilon=epsilon, seed=seed)
        for arm, epsilon in (("federated", "1"), ("federated", "inf"), ("federated", "unclipped"), ("central", "1"))
        for seed in (0, 1)
    ]


def patient(**changes):
    images = np.random.default_rng(0).random((4, 16, 16)).astype(np.float32)
    kspace = to_kspace(images)
    arrays = {"images": images, "kspace": kspace, "whitened": whiten(kspace)} | changes
    return figures.patient_figure(**arrays, sequences=SEQUENCES, patient="P07", slice_number=77, cohort_label=LABEL)


DRAW = {
    "accuracy": lambda folders: figures.accuracy_against_epsilon(table1(collect(folders), LABEL), LABEL),
    "confusion": lambda folders: figures.confusion_matrices(collect(folders), LABEL),
    "patient": lambda folders: patient(),
    "curves": lambda folders: figures.training_curves(collect_histories(folders), LABEL),
    "classes": lambda folders: figures.accuracy_per_class(collect(folders), LABEL),
}


def texts(figure):
    return {text.get_text() for text in figure.findobj(mpl.text.Text)}


@pytest.fixture(scope="module", params=list(DRAW))
def saved(request, folders, tmp_path_factory):
    """Draw and save each kind of figure once: its name, the figure and the file."""
    figure, path = DRAW[request.param](folders), tmp_path_factory.mktemp("figures") / "figure.svg"
    figures.save_svg(figure, path)
    return request.param, figure, path


def test_the_same_figure_is_the_same_bytes_whatever_the_users_settings(saved, folders, tmp_path):
    name, _, path = saved
    with mpl.rc_context({"font.size": 23, "svg.fonttype": "none", "svg.hashsalt": "other", "axes.linewidth": 7}):
        figures.save_svg(DRAW[name](folders), tmp_path / "second.svg")
    assert path.read_bytes() == (tmp_path / "second.svg").read_bytes()


def test_svg_is_well_formed_small_enough_and_names_the_cohort(saved):
    _, figure, path = saved
    root = ElementTree.parse(path).getroot()
    width, height = (float(root.get(side).removesuffix("pt")) * 96 / 72 for side in ("width", "height"))
    assert width <= 1000
    assert height <= 1200
    assert LABEL in figure.get_suptitle()
    # Text as shapes: the picture does not depend on the reader's fonts. No date: it does not depend on the day.
    assert not root.findall(".//{http://www.w3.org/2000/svg}text")
    assert "date>" not in path.read_text()


def test_nothing_is_cut_off(saved):
    _, figure, _ = saved
    figure.canvas.draw()
    ink = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert min(ink.x0, ink.y0) >= -0.01
    assert ink.x1 <= width + 0.01
    assert ink.y1 <= height + 0.01


def test_accuracy_shows_runs_chance_and_the_printed_figures(folders):
    figure = DRAW["accuracy"](folders)
    (panel,) = [axes for axes in figure.axes if axes.get_visible()]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "3", "5", "8", "10", "∞", "unclipped"]
    lines = {line.get_label(): line for line in panel.get_lines()}
    assert list(lines["paper, printed (central)"].get_ydata()) == [82.85, 89.53, 89.31, 89.62, 90.33, 90.89]
    assert lines["paper, printed (central)"].get_linestyle() == "--"
    assert set(lines["chance (25 %)"].get_ydata()) == {25.0}
    bars = {container.get_label(): container for container in panel.containers}
    np.testing.assert_allclose(bars["federated"].lines[0].get_ydata().astype(float), [58.75] * 3)
    # Seeds at 55 % and 62.5 %: the bar reaches one standard deviation to either side.
    segment = bars["central"].lines[2][0].get_segments()[0]
    np.testing.assert_allclose(segment[:, 1], [58.75 - 5.3033, 58.75 + 5.3033], atol=1e-3)
    plain = figures.accuracy_against_epsilon(table1(collect(folders), LABEL), LABEL, paper=False)
    assert not any("paper" in text for text in texts(plain))


def test_with_one_seed_the_bar_is_the_interval_over_patients(folders):
    table = table1(collect(folders[:1]), LABEL)
    figure = figures.accuracy_against_epsilon(table, LABEL)
    segment = figure.axes[0].containers[0].lines[2][0].get_segments()[0]
    np.testing.assert_allclose(segment[:, 1], [table["ci_low"].item(), table["ci_high"].item()])
    assert any("interval over patients" in text for text in texts(figure))


def test_lines_differ_without_colour(folders):
    looks = [figures._line(index) for index in range(8)]
    assert len({str(look["linestyle"]) for look in looks}) == len({look["marker"] for look in looks}) == 8
    for name in ("accuracy", "curves", "classes"):
        figure = DRAW[name](folders)
        for panel in figure.axes:
            looks = [
                (
                    str(line.get_linestyle()),
                    str(line._unscaled_dash_pattern),
                    line.get_marker(),
                    line.get_markerfacecolor(),
                )
                for line in panel.get_lines()
                if line.get_marker() not in ("None", "_", "|")
            ]
            marks = [(dashes, marker) for _, dashes, marker, _ in looks]
            assert len(set(marks)) == len(marks)


def test_maps_rise_evenly_in_lightness():
    for name in ("viridis", "cividis", "gray", "Blues_r"):
        red, green, blue, _ = mpl.colormaps[name](np.linspace(0, 1, 64)).T
        assert (np.diff(0.2126 * red + 0.7152 * green + 0.0722 * blue) > 0).all()
    used = {image.get_cmap().name for axes in patient().axes for image in axes.get_images()}
    assert used == {"gray", "viridis", "twilight", "cividis"}


def test_confusion_sums_counts_over_seeds(folders):
    figure = figures.confusion_matrices(collect(folders[:2]), LABEL)
    shown = texts(figure)
    # Patients a and b have 20 images in order; FLAIR is right in all 2 x 2 x 5, T1w in 3 + 5 + 4 + 5.
    assert "100.0\n20" in shown
    assert "85.0\n17" in shown
    assert any("2 seeds" in text for text in shown)


def test_too_many_matrices_are_refused(folders):
    runs = pd.concat([collect(folders[:1]).assign(network=f"n{number}") for number in range(13)])
    with pytest.raises(ValueError, match="at most 12"):
        figures.confusion_matrices(runs, LABEL)


def test_patient_figure_names_patient_slice_and_units():
    figure = patient()
    shown = texts(figure)
    assert "P07" in figure.get_suptitle()
    assert "slice 77" in figure.get_suptitle()
    for unit in ("radians", "dB below its\nmaximum", "standard deviations\nof its image", "share of its\nmaximum"):
        assert unit in shown
    with pytest.raises(ValueError, match="three arrays of 4 images"):
        patient(kspace=np.zeros((3, 16, 16), dtype=np.complex64))


def test_patient_figure_bears_an_empty_image(folders, tmp_path):
    dark = np.zeros((4, 16, 16), dtype=np.float32)
    empty = patient(images=dark, kspace=dark.astype(np.complex64), whitened=dark.astype(np.complex64))
    figures.save_svg(empty, tmp_path / "dark.svg")
    assert ElementTree.parse(tmp_path / "dark.svg").getroot().tag.endswith("svg")


def test_curves_are_means_over_seeds(folders):
    figure = DRAW["curves"](folders)
    panel = next(axes for axes in figure.axes if axes.get_title(loc="left").endswith("central"))
    line = next(line for line in panel.get_lines() if line.get_label() == "ε = 1")
    np.testing.assert_allclose(line.get_ydata(), [25, 50, 60.5])


def test_many_panels_stay_on_one_page(folders):
    runs = pd.concat([collect(folders).assign(network=f"network_{number}") for number in range(6)], ignore_index=True)
    for figure in (
        figures.accuracy_against_epsilon(table1(runs, LABEL), LABEL),
        figures.accuracy_per_class(runs, LABEL),
    ):
        assert figure.get_size_inches()[1] * 96 <= 1200


@pytest.mark.parametrize(
    "draw",
    [figures.accuracy_against_epsilon, figures.confusion_matrices, figures.training_curves, figures.accuracy_per_class],
)
def test_empty_input_is_a_clear_error(draw):
    with pytest.raises(UserError, match="at least one finished run"):
        draw(pd.DataFrame(), LABEL)
