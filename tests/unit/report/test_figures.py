from itertools import combinations
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from run_builder import SEQUENCES, write_run

from zetadp.base.validation import UserError
from zetadp.mri.fourier import to_kspace
from zetadp.mri.whitening import whiten
from zetadp.report import accuracyfigure, figures, figurestyle
from zetadp.report.accuracyfigure import accuracy_against_epsilon
from zetadp.report.figures import confusion_matrices
from zetadp.report.patientfigure import patient_figure
from zetadp.report.tables import collect, collect_histories, table1

LABEL = "simulated cohort phantom-longer, 484 + 266 patients"


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
    return patient_figure(
        **arrays, sequences=SEQUENCES, title=f"Held-out patient P07, slice 77 of those used (axial, from 0), {LABEL}"
    )


DRAW = {
    "accuracy": lambda folders: accuracy_against_epsilon(table1(collect(folders), LABEL), LABEL, chance=25),
    "confusion": lambda folders: confusion_matrices(collect(folders), LABEL),
    "patient": lambda folders: patient(),
    "curves": lambda folders: figures.training_curves(collect_histories(folders), LABEL),
    "classes": lambda folders: figures.accuracy_per_class(collect(folders), LABEL),
}


def texts(figure):
    return {" ".join(text.get_text().split()) for text in figure.findobj(mpl.text.Text)}


def drawn_texts(figure):
    """Yield every text that is drawn: ticks outside the axes are not."""
    legends = [legend for legend in figure.findobj(mpl.legend.Legend) if legend.get_visible()]
    yield from [text for legend in legends for text in (legend.get_title(), *legend.get_texts())]
    yield from figure.texts
    for axes in figure.axes:
        if axes.get_visible():
            yield from (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
            for axis in (axes.xaxis, axes.yaxis):
                yield from [label for tick in axis._update_ticks() for label in (tick.label1, tick.label2)]


def overlaps(figure):
    """Return pairs of drawn texts that lie on each other."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in drawn_texts(figure) if t.get_visible()]
    boxes = [(text, box.padded(-1)) for text, box in boxes if text.strip()]
    return [(a, b) for i, (a, one) in enumerate(boxes) for b, other in boxes[:i] if one.overlaps(other)]


@pytest.fixture(scope="module", params=list(DRAW))
def saved(request, folders, tmp_path_factory):
    """Draw and save each kind of figure once: its name, the figure and the file."""
    figure, path = DRAW[request.param](folders), tmp_path_factory.mktemp("figures") / "figure.svg"
    figurestyle.save_svg(figure, path)
    return request.param, figure, path


def test_the_same_figure_is_the_same_bytes_whatever_the_users_settings(saved, folders, tmp_path):
    name, _, path = saved
    with mpl.rc_context({"font.size": 23, "svg.fonttype": "none", "svg.hashsalt": "other", "axes.linewidth": 7}):
        figurestyle.save_svg(DRAW[name](folders), tmp_path / "second.svg")
    assert path.read_bytes() == (tmp_path / "second.svg").read_bytes()


def test_svg_is_well_formed_small_enough_and_names_the_cohort(saved):
    _, figure, path = saved
    root = ElementTree.parse(path).getroot()
    width, height = (float(root.get(side).removesuffix("pt")) * 96 / 72 for side in ("width", "height"))
    assert width <= 1000
    assert height <= 1200
    assert LABEL in " ".join(figure.get_suptitle().split())
    # Text as shapes: the picture does not depend on the reader's fonts. No date: it does not depend on the day.
    assert not root.findall(".//{http://www.w3.org/2000/svg}text")
    assert "date>" not in path.read_text()


def assert_all_is_on_the_page(figure):
    figure.canvas.draw()
    ink = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert min(ink.x0, ink.y0) >= -0.01
    assert ink.x1 <= width + 0.01
    assert ink.y1 <= height + 0.01


def test_nothing_is_cut_off_and_no_words_lie_on_others(saved):
    _, figure, _ = saved
    assert_all_is_on_the_page(figure)
    assert overlaps(figure) == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_title_longer_than_a_narrow_figure_goes_on_in_the_next_line(folders, count):
    runs = collect(folders).query("arm == 'federated'").groupby("epsilon").head(1).head(count)
    figure = confusion_matrices(runs, LABEL)
    assert_all_is_on_the_page(figure)
    assert "\n" in figure.get_suptitle()
    assert LABEL in " ".join(figure.get_suptitle().split())


def test_lines_break_at_the_width_and_nowhere_within_an_equation():
    text = "per patient ε = 1 and 484 + 266 patients"
    with figurestyle.figure_style():
        lines = figurestyle.wrapped(text, 10, 0.01).split("\n")
        assert lines == ["per", "patient", "ε = 1", "and", "484 + 266", "patients"]
        assert figurestyle.wrapped(text, 10, 99) == text
        assert figurestyle.wrapped("a\nb", 10, 99) == "a\nb"


def test_accuracy_shows_runs_and_chance(folders):
    figure = DRAW["accuracy"](folders)
    (panel,) = [axes for axes in figure.axes if axes.get_visible()]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "∞", "unclipped"]
    lines = {line.get_label(): line for line in panel.get_lines()}
    assert set(lines["chance (25 %)"].get_ydata()) == {25.0}
    bars = {container.get_label(): container for container in panel.containers}
    np.testing.assert_allclose(bars["federated"].lines[0].get_ydata().astype(float), [58.75] * 3)
    # Seeds at 55 % and 62.5 %: the bar reaches one standard deviation to either side.
    segment = bars["central"].lines[2][0].get_segments()[0]
    np.testing.assert_allclose(segment[:, 1], [58.75 - 5.3033, 58.75 + 5.3033], atol=1e-3)


def test_accuracy_says_what_epsilon_means_and_how_many_seeds_there_are(folders):
    shown = texts(DRAW["accuracy"](folders))
    assert "ε per patient, δ = 0.001, simulated noise" in shown
    assert any("mean of 2 seeds; bars: ± one standard deviation over seeds" in text for text in shown)
    shown = texts(DRAW["accuracy"](folders[:1]))
    assert any("one seed; bars: 95 % interval over patients" in text for text in shown)
    shown = texts(DRAW["accuracy"]([*folders[:2], folders[2]]))
    assert any("mean of 1 to 2 seeds" in text and "95 % interval over patients with one seed" in text for text in shown)


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"unit": "record", "delta": 1e-5}, "ε per record, δ = 1e-05, simulated noise"),
        ({"noise_source": "os"}, "ε per patient, δ = 0.001"),
        ({"unit": "image"}, "ε per image, δ = 0.001, simulated noise"),
        ({"epsilon": "inf"}, "ε"),
    ],
)
def test_epsilon_is_named_as_the_statements_have_it(tmp_path, privacy, said):
    folder = write_run(tmp_path, {"a": 8, "b": 14}, **privacy)
    runs, table = collect([folder]), table1(collect([folder]), LABEL)
    for figure in (accuracy_against_epsilon(table, LABEL), figures.accuracy_per_class(runs, LABEL)):
        assert [panel.get_xlabel() for panel in figure.axes] == [said]
    expected = said if said != "ε" else "∞: clipped, no noise, no guarantee"
    assert expected in texts(confusion_matrices(runs, LABEL))
    (heading,) = [text for text in texts(figures.training_curves(collect_histories([folder]), LABEL)) if "Held" in text]
    assert expected in heading


def test_of_two_units_the_weaker_is_marked_where_it_is(tmp_path):
    folders = [write_run(tmp_path, {"a": 8, "b": 14}), write_run(tmp_path, {"a": 8}, network="other", unit="image")]
    shown = texts(DRAW["accuracy"](folders))
    assert {"ε per patient unless marked, δ = 0.001, simulated noise", "network other (ε per image)"} <= shown


def test_lines_begin_at_what_public_weights_reach_before_any_private_training(tmp_path):
    folders = [
        write_run(tmp_path, {"a": 8, "b": 14}, network="pretrained", seed=seed, public=0.8125) for seed in (0, 1)
    ]
    folders.append(write_run(tmp_path, {"a": 8, "b": 14}))
    figure = DRAW["accuracy"](folders)
    started, other = figure.axes
    # All that is in the first panel lies above 50 %, so it shows that half alone, and says so.
    titles = [panel.get_title(loc="left") for panel in figure.axes]
    assert titles == [f"{accuracyfigure.FROM_PUBLIC}, axis from 50 %", accuracyfigure.FROM_RANDOM]
    assert [min(panel.get_yticks()) for panel in figure.axes] == [50, 0]
    assert started.get_ylim()[0] < 50 < min(min(line.get_ydata()) for line in started.get_lines())
    assert [container.get_label() for container in started.containers] == ["network pretrained"]
    assert [container.get_label() for container in other.containers] == ["network complex"]
    at = [line for line in started.get_lines() if set(line.get_ydata()) == {81.25}]
    point, level = sorted(at, key=lambda line: len(line.get_ydata()))
    assert (list(point.get_xdata()), point.get_markerfacecolor(), level.get_linestyle()) == ([-1], "white", ":")
    assert started.get_xticklabels()[0].get_text() == accuracyfigure.PUBLIC
    assert not [line for line in other.get_lines() if 81.25 in line.get_ydata()]
    assert any("Dotted: public weights" in text for text in texts(figure))
    low = write_run(tmp_path, {"a": 8, "b": 4}, network="pretrained", seed=2, public=0.8125)
    assert min(DRAW["accuracy"]([low, folders[-1]]).axes[0].get_yticks()) == 0


def test_networks_of_one_arm_share_a_panel_and_differ_without_colour(tmp_path):
    folders = [write_run(tmp_path, {"a": 8, "b": 14}, network=f"net_{number}") for number in range(8)]
    (panel,) = DRAW["accuracy"](folders).axes
    lines = [container.lines[0] for container in panel.containers]
    assert len({(line.get_marker(), line.get_linestyle()) for line in lines}) == 8
    assert len({tuple(line.get_xdata()) for line in lines}) == 8  # side by side
    more = write_run(tmp_path, {"a": 8, "b": 14}, network="net_8")
    assert len(DRAW["accuracy"]([*folders, more]).axes) == 9


def test_every_network_has_a_line_at_the_best_without_noise(tmp_path):
    one = write_run(tmp_path, {"a": 8, "b": 14})
    assert not any("best without noise" in text for text in texts(DRAW["accuracy"]([one])))
    free = [
        write_run(tmp_path, {"a": hits}, network=network, epsilon=epsilon)
        for network, epsilon, hits in (("complex", "inf", 10), ("other", "unclipped", 12))
    ]
    table = table1(collect([one, *free]), LABEL)
    figure = accuracy_against_epsilon(table, LABEL)
    height = table.loc[table["network"] == "other", "mean"].item()
    label = f"best without noise: network other, {height:.1f} %"
    for panel in figure.axes:
        (line,) = [line for line in panel.get_lines() if line.get_label() == label]
        assert set(line.get_ydata()) == {height}


def test_with_one_seed_the_bar_is_the_interval_over_patients(folders):
    table = table1(collect(folders[:1]), LABEL)
    figure = accuracy_against_epsilon(table, LABEL)
    segment = figure.axes[0].containers[0].lines[2][0].get_segments()[0]
    np.testing.assert_allclose(segment[:, 1], [table["ci_low"].item(), table["ci_high"].item()])
    assert any("interval over patients" in text for text in texts(figure))


def test_lines_differ_without_colour(folders):
    looks = [figurestyle.line_look(index) for index in range(8)]
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
    figure = confusion_matrices(collect(folders[:2]), LABEL)
    shown = texts(figure)
    # Patients a and b have 20 images in order; FLAIR is right in all 2 x 2 x 5, T1w in 3 + 5 + 4 + 5.
    assert "100.0 20" in shown
    assert "85.0 17" in shown
    assert any("2 seeds" in text for text in shown)


def test_of_ten_classes_no_number_lies_on_another(folders):
    runs = pd.concat([collect(folders[:1])] * 12, ignore_index=True)
    counts = np.random.default_rng(0).multinomial(1000, [0.1] * 10, size=10) + 9000 * np.eye(10, dtype=int)
    runs["network"] = [f"network {number}" for number in range(12)]
    runs["confusion"], runs["classes"] = [counts.tolist()] * 12, [list("0123456789")] * 12
    figure = confusion_matrices(runs, LABEL)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.canvas.draw()
    panel = figure.axes[0]
    boxes = [text.get_window_extent(renderer) for text in panel.texts if text.get_text()]
    assert len(boxes) == 100
    overlaps = [one for one, other in combinations(boxes, 2) if one.overlaps(other)]
    assert not overlaps


def test_what_is_held_out_is_called_by_the_unit(folders):
    runs = collect(folders)
    assert any("Held-out test patients" in text for text in texts(figures.accuracy_per_class(runs, LABEL)))
    runs["unit"] = "record"
    for figure in (
        figures.accuracy_per_class(runs, LABEL),
        accuracy_against_epsilon(table1(runs, LABEL), LABEL),
    ):
        assert any("Held-out test records" in text for text in texts(figure))
        assert not any("test patients" in text or "over patients" in text for text in texts(figure))
    histories = collect_histories(folders).assign(unit="record")
    curves = texts(figures.training_curves(histories, LABEL))
    assert any("Held-out validation records" in text for text in curves)


def test_the_headline_is_shown_and_what_does_not_fit_is_named(tmp_path):
    """Thirteen cells as in the default: the tightest guarantee of each network is there, and one cell is not."""
    grid = {"complex": ("8", "inf"), "linear": ("8", "inf"), "pretrained": ("1", "8", "inf")}
    grid |= dict.fromkeys(("real_image", "real_kspace", "other"), ("8", "inf"))
    folders = [
        write_run(tmp_path, {"a": 8, "b": 14}, network=network, epsilon=epsilon)
        for network, epsilons in grid.items()
        for epsilon in epsilons
    ]
    figure = confusion_matrices(collect(folders), LABEL)
    shown = texts(figure)
    assert "pretrained, federated ε = 1, one seed" in shown
    cells = {(network, epsilon) for network, epsilons in grid.items() for epsilon in epsilons}
    for network, epsilon in cells - {("pretrained", "8")}:
        assert f"{network}, federated ε = {epsilon.replace('inf', '∞')}, one seed" in shown
    (said,) = [text for text in shown if "Not shown" in text]
    assert said.endswith("Not shown, for lack of room: pretrained, federated: ε = 8")
    assert_all_is_on_the_page(figure)
    assert not any("Not shown" in text for text in texts(confusion_matrices(collect(folders[:4]), LABEL)))


def test_the_most_telling_cells_come_first():
    cells = [
        ("a", "x", "8", 0.5),
        ("a", "x", "1", 0.4),
        ("a", "x", "inf", 0.9),
        ("b", "x", "1", 0.6),
        ("b", "x", "unclipped", 0.9),
    ]
    runs = pd.DataFrame(cells, columns=["network", "arm", "epsilon", "value"])
    order = [(network, epsilon) for network, _, epsilon in figures.most_telling(runs)]
    assert order == [("b", "1"), ("a", "1"), ("a", "inf"), ("a", "8"), ("b", "unclipped")]


def test_patient_figure_names_patient_slice_and_units():
    figure = patient()
    shown = texts(figure)
    assert "P07" in figure.get_suptitle()
    assert "slice 77" in figure.get_suptitle()
    for unit in ("radians", "dB below its maximum", "standard deviations of its image", "share of its maximum"):
        assert unit in shown
    with pytest.raises(ValueError, match="three arrays of 4 images"):
        patient(kspace=np.zeros((3, 16, 16), dtype=np.complex64))


def test_patient_figure_bears_an_empty_image(folders, tmp_path):
    dark = np.zeros((4, 16, 16), dtype=np.float32)
    empty = patient(images=dark, kspace=dark.astype(np.complex64), whitened=dark.astype(np.complex64))
    figurestyle.save_svg(empty, tmp_path / "dark.svg")
    assert ElementTree.parse(tmp_path / "dark.svg").getroot().tag.endswith("svg")


def test_curves_are_means_over_seeds(folders):
    figure = DRAW["curves"](folders)
    panel = next(axes for axes in figure.axes if axes.get_title(loc="left").endswith("central"))
    line = next(line for line in panel.get_lines() if line.get_label() == "ε = 1")
    np.testing.assert_allclose(line.get_ydata(), [25, 50, 60.5])


def test_with_one_seed_no_spread_is_promised_or_drawn(folders):
    for name, promise in (("curves", "bands: ± one standard"), ("classes", "bars: ± one standard")):
        one, two = DRAW[name](folders[:1]), DRAW[name](folders[:2])
        assert any("one seed, so no spread over seeds is known or shown" in text for text in texts(one))
        assert not any("deviation" in text for text in texts(one))
        assert any(f"mean of 2 seeds; {promise} deviation over seeds" in text for text in texts(two))
        drawn = [len(figure.findobj(mpl.collections.Collection)) for figure in (one, two)]
        assert drawn[0] == 0 < drawn[1]


def test_a_legend_is_in_the_order_of_epsilon(tmp_path):
    """The first panel has a looser guarantee than the second."""
    folders = [write_run(tmp_path, {"a": 8}, network=network, epsilon=e) for network, e in (("a", "8"), ("b", "1"))]
    (legend,) = DRAW["curves"](folders).legends
    assert [text.get_text() for text in legend.get_texts()] == ["ε = 1", "ε = 8"]


def test_many_panels_stay_readable_on_one_page(folders):
    runs = pd.concat([collect(folders).assign(network=f"network_{number}") for number in range(20)], ignore_index=True)
    table = table1(runs, LABEL).assign(public_start=93.9)
    for figure in (
        accuracy_against_epsilon(table, LABEL),
        figures.accuracy_per_class(runs[runs["arm"] == "federated"], LABEL),
        confusion_matrices(runs, LABEL),
    ):
        assert figure.get_size_inches()[1] * 96 <= 1200
        assert_all_is_on_the_page(figure)
        assert overlaps(figure) == []


@pytest.mark.parametrize(
    "draw",
    [accuracy_against_epsilon, confusion_matrices, figures.training_curves, figures.accuracy_per_class],
)
def test_empty_input_is_a_clear_error(draw):
    with pytest.raises(UserError, match="at least one finished run"):
        draw(pd.DataFrame(), LABEL)
