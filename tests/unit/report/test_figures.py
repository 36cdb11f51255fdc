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
from zetadp.report.accuracyfigure import BEST, PUBLIC, accuracy_against_epsilon, compare_networks
from zetadp.report.figures import confusion_matrices
from zetadp.report.patientfigure import patient_figure
from zetadp.report.provenance import Cohort
from zetadp.report.tables import collect, histories, table1

COHORT = Cohort("cohort phantom-longer, 484 + 266 patients", simulated=True)


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
    return patient_figure(**arrays, sequences=SEQUENCES, title=f"Held-out patient P07, slice 77, {COHORT}")


def accuracy(folders):
    return accuracy_against_epsilon(table1(collect(folders), COHORT), COHORT, chance=25)


DRAW = {
    "accuracy": accuracy,
    "networks": lambda folders: compare_networks(table1(collect(folders), COHORT), COHORT, chance=25),
    "confusion": lambda folders: confusion_matrices(collect(folders), COHORT),
    "curves": lambda folders: figures.training_curves(histories(collect(folders)), COHORT),
    "patient": lambda folders: patient(),
}


def lines(panel):
    """Return the values of every line of a panel, with and without bars, by their labels."""
    found = {line.get_label(): line.get_ydata() for line in panel.get_lines()}
    found |= {container.get_label(): container.lines[0].get_ydata() for container in panel.containers}
    return {str(label): np.asarray(values, dtype=float) for label, values in found.items()}


def bars(panel, label):
    """Return the ends of the bars of a line."""
    (container,) = [each for each in panel.containers if each.get_label() == label]
    return [segment[:, 1].tolist() for segment in container.lines[2][0].get_segments()]


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


def test_curves_show_means_and_intervals_on_a_logarithmic_axis(tmp_path):
    folders = [
        write_run(tmp_path, {"a": 8 + seed, "b": 14 + 2 * seed}, epsilon=epsilon, seed=seed)
        for epsilon in ("0.3", "3", "30", "inf")
        for seed in (0, 1)
    ]
    table = table1(collect(folders), COHORT)
    (panel,) = accuracy(folders).axes
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["0.3", "3", "30", "∞"]
    assert np.diff(panel.get_xticks())[:2] == pytest.approx([1, 1])
    (curve, free) = panel.containers
    assert curve.lines[0].get_ydata() == pytest.approx([58.75] * 3)
    assert (free.lines[0].get_markerfacecolor(), free.lines[0].get_linestyle()) == ("white", "None")
    assert bars(panel, "local noise") == pytest.approx(table[["ci_low", "ci_high"]].to_numpy()[:3])
    assert panel.get_legend() is None, "the title names the only curve"
    assert f"Accuracy of network complex with local noise against ε, {COHORT}" in texts(panel.figure)
    # Without intervals, bars are the spread of seeds at 55 % and 62.5 %.
    bare = accuracy_against_epsilon(table.assign(ci_low=np.nan, ci_high=np.nan), COHORT)
    assert bars(bare.axes[0], "local noise")[0] == pytest.approx([58.75 - 5.3033, 58.75 + 5.3033], abs=1e-3)


def test_the_default_s_legend_has_five_words_at_most(tmp_path):
    secure = {"threat": {"model": "masked_sums", "epsilon_single_messages": 3.0}}
    folders = [
        write_run(tmp_path, {"a": 18, "b": 19}, network="head", arm=arm, epsilon=epsilon, public=0.85, **privacy)
        for arm, privacy in (("federated", {}), ("sums", secure))
        for epsilon in ("1", "8")
    ]
    folders.append(write_run(tmp_path, {"a": 19, "b": 20}, network="head", epsilon="inf", public=0.85))
    folders.append(write_run(tmp_path, {"a": 8, "b": 14}))
    table = table1(collect(folders), COHORT)
    figure = accuracy_against_epsilon(table, COHORT, networks=["head"], chance=25)
    (panel,) = figure.axes
    legend = [text.get_text() for text in panel.get_legend().get_texts()]
    assert legend == ["local noise", "masked sums"]
    assert {f"{PUBLIC}, 85.0 %", f"{BEST}, 97.5 %"} <= texts(panel)
    assert not [text for text in texts(figure) if "complex" in text or "guessing" in text]
    # All values are high, so the axis begins near the lowest; no two lines look alike.
    assert panel.get_ylim()[0] == 80
    looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in panel.get_lines()]
    drawn = [look for look in looks if look[1] != "None" and look[2] in ("None", "o", "s")]
    assert len(set(drawn)) == len(drawn)


def test_other_networks_have_a_row_each_and_hollow_marks_without_noise(tmp_path):
    folders = [write_run(tmp_path, {"a": 18, "b": 19}, network="head", epsilon="inf")]
    folders += [write_run(tmp_path, {"a": 10, "b": 14}, network="twin", public=0.5)]
    folders += [write_run(tmp_path, {"a": 8, "b": 14}, epsilon=epsilon) for epsilon in ("3", "unclipped")]
    figure = compare_networks(table1(collect(folders), COHORT), COHORT, networks=["twin", "complex"], chance=25)
    (panel,) = figure.axes
    assert [tick.get_text() for tick in panel.get_yticklabels()] == ["twin", "complex"]
    marks = {each.get_label(): each.lines[0] for each in panel.containers}
    assert marks["ε = 3"].get_xdata() == pytest.approx([60, 55])
    assert marks["unclipped"].get_markerfacecolor() == "white"
    assert {f"{BEST} (head), 92.5 %", "guessing, 25 %", PUBLIC} <= texts(figure)


def test_a_figure_of_runs_without_noise_alone_is_not_empty(tmp_path):
    (panel,) = accuracy([write_run(tmp_path, {"a": 8, "b": 14}, epsilon="inf")]).axes
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["∞"]
    assert [container.lines[0].get_ydata().tolist() for container in panel.containers] == [pytest.approx([55])]


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
    runs, table = collect([folder]), table1(collect([folder]), COHORT)
    by_epsilon = accuracy_against_epsilon(table, COHORT)
    curves = figures.training_curves(histories(runs), COHORT)
    expected = said if said != "ε" else "∞: clipped, no noise, no guarantee"
    assert [panel.get_xlabel() for panel in by_epsilon.axes] == [said]
    assert expected in texts(confusion_matrices(runs, COHORT))
    assert any(expected in text for text in texts(curves))
    whose = "records" if privacy.get("unit") == "record" else "patients"
    for figure in (by_epsilon, curves):
        (heading,) = [text for text in texts(figure) if "Held-out" in text]
        assert f" {whose};" in heading


def test_of_two_units_the_weaker_is_marked_where_it_is(tmp_path):
    folders = [write_run(tmp_path, {"a": 8, "b": 14}), write_run(tmp_path, {"a": 8}, network="other", unit="image")]
    assert {
        "ε per patient unless marked, δ = 0.001, simulated noise",
        "other (ε per image)",
    } <= texts(accuracy(folders))


def test_each_of_several_public_starts_is_named(tmp_path):
    folders = [write_run(tmp_path, {"a": 8, "b": 14}, network=name, public=0.5) for name in ("one", "two")]
    folders.append(write_run(tmp_path, {"a": 8, "b": 14}, network="three", public=0.75))
    assert {f"{PUBLIC} of one, two, 50.0 %", f"{PUBLIC} of three, 75.0 %"} <= texts(accuracy(folders))


def test_of_many_matrices_one_without_noise_and_those_of_the_smallest_epsilons_are_drawn(folders):
    runs = pd.concat([collect(folders).assign(network=f"network_{number}") for number in range(7)], ignore_index=True)
    figure = confusion_matrices(runs, COHORT)
    drawn = [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]
    assert len(drawn) == figures.MAX_MATRICES
    assert sum("ε = 1" in title for title in drawn) == figures.MAX_MATRICES - 1
    assert sum("ε = ∞" in title for title in drawn) == 1
    assert any("Not shown, for lack of room" in text and "unclipped" in text for text in texts(figure))


def test_confusion_sums_counts_over_seeds(folders):
    # Patients a and b have 20 images in order; FLAIR is right in all 2 x 2 x 5, T1w in 3 + 5 + 4 + 5.
    assert {"100.0 20", "85.0 17"} <= texts(confusion_matrices(collect(folders[:2]), COHORT))


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
