"""Every figure shows the data that it is given, can be read in grey, fits its page, and is the same bytes each time."""

import os
import subprocess
import sys
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from checkouts import ROOT
from run_builder import SEQUENCES, write_run

from zetadp.mri.kspace import to_kspace, whiten
from zetadp.report import figures, figurestyle
from zetadp.report.figures import accuracy_against_epsilon, confusion_matrices
from zetadp.report.patientfigure import patient_figure
from zetadp.report.tables import collect, histories, table1

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
    return patient_figure(**arrays, sequences=SEQUENCES, title=f"Held-out patient P07, slice 77, {LABEL}")


def accuracy(folders):
    return accuracy_against_epsilon(table1(collect(folders), LABEL), LABEL, chance=25)


DRAW = {
    "accuracy": accuracy,
    "confusion": lambda folders: confusion_matrices(collect(folders), LABEL),
    "curves": lambda folders: figures.training_curves(histories(collect(folders)), LABEL),
    "patient": lambda folders: patient(),
}


def lines(panel):
    """Return the values of every line of a panel, with and without bars, by their labels."""
    found = {line.get_label(): line.get_ydata() for line in panel.get_lines()}
    found |= {container.get_label(): container.lines[0].get_ydata() for container in panel.containers}
    return {str(label): np.asarray(values, dtype=float) for label, values in found.items()}


def bar(panel, label):
    """Return the ends of the first bar of a line."""
    (container,) = [each for each in panel.containers if each.get_label() == label]
    return container.lines[2][0].get_segments()[0][:, 1]


def texts(figure):
    return {" ".join(text.get_text().split()) for text in figure.findobj(mpl.text.Text)}


@pytest.mark.parametrize("name", DRAW)
def test_the_same_figure_is_the_same_bytes_whatever_the_users_settings(name, folders, tmp_path):
    figurestyle.save_svg(DRAW[name](folders), tmp_path / "one.svg")
    with mpl.rc_context({"font.size": 23, "svg.fonttype": "none", "svg.hashsalt": "other", "axes.linewidth": 7}):
        figurestyle.save_svg(DRAW[name](folders), tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    # Text as shapes: the picture does not depend on the reader's fonts. No date: it does not depend on the day.
    assert not ElementTree.parse(tmp_path / "one.svg").getroot().findall(".//{http://www.w3.org/2000/svg}text")
    assert "date>" not in (tmp_path / "one.svg").read_text()


@pytest.mark.parametrize("module", ["zetadp.report.riskpage", "papers.experiments"])
def test_the_backend_of_whoever_starts_the_program_changes_nothing(module):
    """Jupyter exports its own to `!zetadp` and `!snakemake`. matplotlib refuses a name that it does not know."""
    environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    code = f"import {module}, matplotlib; print(matplotlib.get_backend())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "agg"), done.stderr


def test_accuracy_shows_means_and_spread_over_seeds_and_with_one_seed_the_interval(folders):
    (panel,) = [axes for axes in accuracy(folders).axes if axes.get_visible()]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["1", "∞", "unclipped"]
    assert lines(panel)["federated"] == pytest.approx([58.75] * 3)
    assert set(lines(panel)["chance (25 %)"]) == {25.0}
    # Seeds at 55 % and 62.5 %.
    assert bar(panel, "central") == pytest.approx([58.75 - 5.3033, 58.75 + 5.3033], abs=1e-3)
    table = table1(collect(folders[:1]), LABEL)
    figure = accuracy_against_epsilon(table, LABEL)
    assert bar(figure.axes[0], "federated") == pytest.approx([table["ci_low"].item(), table["ci_high"].item()])
    assert any("interval over patients" in text for text in texts(figure))


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"unit": "record", "delta": 1e-5}, "ε per record, δ = 1e-05, simulated noise"),
        ({"noise_source": "os"}, "ε per patient, δ = 0.001"),
        ({"unit": "image"}, "ε per image, δ = 0.001, simulated noise"),
        ({"epsilon": "inf"}, "ε"),
    ],
)
def test_epsilon_and_those_held_out_are_named_as_the_statements_have_it(tmp_path, privacy, said):
    folder = write_run(tmp_path, {"a": 8, "b": 14}, **privacy)
    runs, table = collect([folder]), table1(collect([folder]), LABEL)
    by_epsilon = accuracy_against_epsilon(table, LABEL)
    curves = figures.training_curves(histories(runs), LABEL)
    expected = said if said != "ε" else "∞: clipped, no noise, no guarantee"
    assert [panel.get_xlabel() for panel in by_epsilon.axes] == [said]
    assert expected in texts(confusion_matrices(runs, LABEL))
    assert any(expected in text for text in texts(curves))
    whose = "records" if privacy.get("unit") == "record" else "patients"
    for figure in (by_epsilon, curves):
        (heading,) = [text for text in texts(figure) if "Held-out" in text and "bars" not in text[:8]]
        assert f" {whose};" in heading


def test_of_two_units_the_weaker_is_marked_where_it_is(tmp_path):
    folders = [write_run(tmp_path, {"a": 8, "b": 14}), write_run(tmp_path, {"a": 8}, network="other", unit="image")]
    assert {
        "ε per patient unless marked, δ = 0.001, simulated noise",
        "network other (ε per image)",
    } <= texts(accuracy(folders))


def test_lines_begin_at_what_public_weights_reach_before_any_private_training(tmp_path):
    folders = [
        write_run(tmp_path, {"a": 8, "b": 14}, network="pretrained", seed=seed, public=0.8125) for seed in (0, 1)
    ]
    folders.append(write_run(tmp_path, {"a": 8, "b": 14}))
    started, other = accuracy(folders).axes
    # All that is in the first panel lies above 50 %, so it shows that half alone, and says so.
    titles = [panel.get_title(loc="left") for panel in (started, other)]
    assert titles == [f"{figures.FROM_PUBLIC}, axis from 50 %", figures.FROM_RANDOM]
    assert [min(panel.get_yticks()) for panel in (started, other)] == [50, 0]
    assert min(min(values) for values in lines(started).values()) > 50
    assert ("network pretrained" in lines(started), "network complex" in lines(other)) == (True, True)
    at = [line for line in started.get_lines() if set(line.get_ydata()) == {81.25}]
    point, level = sorted(at, key=lambda line: len(line.get_ydata()))
    assert (list(point.get_xdata()), point.get_markerfacecolor(), level.get_linestyle()) == ([-1], "white", ":")
    assert started.get_xticklabels()[0].get_text() == figures.PUBLIC
    assert not [values for values in lines(other).values() if 81.25 in values]
    low = write_run(tmp_path, {"a": 8, "b": 4}, network="pretrained", seed=2, public=0.8125)
    assert min(accuracy([low, folders[-1]]).axes[0].get_yticks()) == 0


def test_of_many_matrices_one_without_noise_and_those_of_the_smallest_epsilons_are_drawn(folders):
    runs = pd.concat([collect(folders).assign(network=f"network_{number}") for number in range(7)], ignore_index=True)
    figure = confusion_matrices(runs, LABEL)
    drawn = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert len(drawn) == figures.MAX_MATRICES
    assert sum("ε = 1" in title for title in drawn) == figures.MAX_MATRICES - 1
    assert sum("ε = ∞" in title for title in drawn) == 1
    assert any("Not shown, for lack of room" in text and "unclipped" in text for text in texts(figure))


def test_confusion_sums_counts_over_seeds(folders):
    # Patients a and b have 20 images in order; FLAIR is right in all 2 x 2 x 5, T1w in 3 + 5 + 4 + 5.
    assert {"100.0 20", "85.0 17"} <= texts(confusion_matrices(collect(folders[:2]), LABEL))


def test_the_patient_s_panels_are_its_data_and_an_empty_image_is_borne(tmp_path):
    figure = patient()
    images = [image.get_array() for axes in figure.axes for image in axes.get_images()]
    kspace = to_kspace(np.random.default_rng(0).random((4, 16, 16)).astype(np.float32))
    assert any(np.allclose(image, np.angle(kspace[0])) for image in images)
    assert any(np.allclose(image, whiten(kspace)[3].imag) for image in images)
    assert {"radians", "dB below its maximum"} <= texts(figure)
    with pytest.raises(ValueError, match="three arrays of 4 images"):
        patient(kspace=np.zeros((3, 16, 16), dtype=np.complex64))
    dark = np.zeros((4, 16, 16), dtype=np.float32)
    empty = patient(images=dark, kspace=dark.astype(np.complex64), whitened=dark.astype(np.complex64))
    figurestyle.save_svg(empty, tmp_path / "dark.svg")
