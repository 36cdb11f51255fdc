"""The page of each paper shows what its kept tables hold."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

PAPERS = Path(__file__).parents[2] / "papers"
DIGITS = {"method": ["head on public features, one holder"], "epsilon": [0.53]}
KAPPAS = [75, 100, 150, 300, 500]
EPSILONS = [0.5, 1, 2, 4, 8]
GRID = {"network": ["pooled"], "epsilon": ["1", "8", "inf"]}
HIERARCHICAL = ["hierarchical, equal classes assumed", "hierarchical, shares declared"]
SHOWN = [
    ("complex_mri", "table", GRID, "{mean:.1f} ± {std:.1f}"),
    ("complex_mri", "table", {"network": ["faster", "per_image"]}, "{mean:.1f}"),
    ("complex_mri", "short/table1", {"network": ["cardioid", "crelu"]}, "{mean:.1f} ({ci_low:.1f} to {ci_high:.1f})"),
    ("complex_mri", "activations/table1", {}, "{mean:.1f} ± {std:.1f}"),
    ("complex_mri", "whole/table1", {}, "{mean:.1f} % ({ci_low:.1f} to {ci_high:.1f}"),
    ("complex_dp", "ecg/table", {}, "{mean:.2f}"),
    ("complex_dp", "phase_mnist/table", DIGITS, "{mean:.2f} ± {std:.2f}"),
    ("complex_dp", "activations/table", {"activation": ["siglog"]}, "SigLog leads with {mean:.1f} %"),
    ("complex_dp", "activations/table", {"activation": ["igaussian"]}, "iGaussian is number {rank} with {mean:.1f} %"),
    ("complex_dp", "activations/order", {}, "{tau:+.2f} ({tau_low:+.2f} to {tau_high:+.2f})"),
    (
        "complex_dp",
        "reconstruction/table",
        {"method": ["small part trained"], "epsilon": [8]},
        "{way_SSIM_low:.0f} to {way_SSIM_high:.0f} %), and {way_NMSE:.0f} % of it in NMSE",
    ),
    (
        "complex_dp",
        "reconstruction/real",
        {"data": ["three patients, T2w volumes"], "method": ["small part trained"]},
        "SSIM is {SSIM:.3f} at ε = 8",
    ),
    (
        "directions",
        "table",
        {"part": ["printed_directions"], "kappa": KAPPAS},
        "| {table_4:g} | {true_epsilon:.3g} |",
    ),
    (
        "directions",
        "table",
        {"part": ["printed_gaussian"], "printed_kappa": KAPPAS},
        "| {sigma:g} | {printed:g} | {true_epsilon:.3g} | {equally_private_kappa:.0f} |",
    ),
    (
        "directions",
        "table",
        {"part": ["claim"], "predictor": ["printed epsilon"]},
        "ε | {spearman_MNIST:.2f} |",
    ),
    (
        "directions",
        "table",
        {"part": ["equal_epsilon"], "true_epsilon": [1, 8]},
        "| {kappa:.1f} | {sigma:.3f} | {direction_capacity:.1f} | {gaussian_capacity_1:.1f} |",
    ),
    ("neuromixgdp", "accounting", {"part": ["poisson"], "printed_epsilon": EPSILONS}, "| {printed_noise:.3f} |"),
    ("neuromixgdp", "accounting", {"part": ["hierarchical"], "printed_epsilon": EPSILONS[1:]}, "| {true_epsilon:.3g}"),
    ("neuromixgdp", "mnist", {"data": ["mnist"], "kind": ["encoder"], "epsilon": [1]}, "{mean:.2f} ± {std:.2f}"),
    ("neuromixgdp", "mnist", {"kind": ["pixels"]}, "{mean:.2f}"),
    ("neuromixgdp", "mnist", {"data": ["fashion"]}, "{mean:.2f} ± {std:.2f}"),
    ("neuromixgdp", "mnist", {"kind": ["axes"], "epsilon": [1]}, "{mean:.2f}"),
    ("neuromixgdp", "mnist", {"kind": ["scattering"]}, "{mean:.2f}"),
    ("neuromixgdp", "mnist_long", {}, "{mean:.2f} ± {std:.2f}"),
    ("neuromixgdp", "sweep", {}, "{mean:.1f} ± {std:.1f}"),
    ("neuromixgdp", "regimes", {"classes": [10, 20], "people": [4000], "holders": [1]}, "| {mean:.1f} |"),
    ("neuromixgdp", "inversion", {"degree": [1, 64], "epsilon": [1, 8]}, "| {rank:.1f} |"),
    *(
        ("neuromixgdp", "cifar100", {"data": ["CIFAR-100"], "class_rate": [share]}, "| {true:.3g} | {descent:.1f} |")
        for share in (0.03, 0.1, 0.3)
    ),
    ("neuromixgdp", "shares", {"method": HIERARCHICAL, "head": ["subtracted"]}, "| {accuracy:.1f} |"),
]


@pytest.mark.parametrize(("paper", "table", "where", "words"), SHOWN)
def test_the_page_says_what_the_table_says(paper, table, where, words):
    kept = pd.read_csv(PAPERS / paper / f"results/{table}.csv", comment="#")
    for column, values in where.items():
        kept = kept[kept[column].isin(values)]
    kept = kept.assign(**{name: 100 * kept[name] for name in kept if name.startswith("way_")})
    page = " ".join((PAPERS / paper / "README.md").read_text().replace("**", "").split())
    assert len(kept)
    assert not [said for row in kept.to_dict("records") if (said := words.format(**row)) not in page]


def test_the_page_of_releases_says_what_the_tables_say():
    regimes = pd.read_csv(PAPERS / "neuromixgdp/results/regimes.csv", comment="#")
    cells = regimes.set_index(["classes", "people", "holders", "method"])["mean"].sort_index()
    page = " ".join((PAPERS.parent / "docs/feature_release.md").read_text().split())
    few, many = cells[10, 1000, 1], cells[20, 1000, 1]
    assert f"not to subtract it: {few['plain_open_rows']:.1f} % in the first line" in page
    assert f"ten classes: {few['open_rows']:.1f} %, and {few['rows']:.1f} % with `--active 1`" in page
    assert f"it reaches {many['open_rows']:.1f} instead of {many['gradients']:.1f} %" in page
    for classes, people in ((5, 4000), (10, 4000), (5, 16_000), (10, 16_000)):
        assert cells[classes, people, 1]["gradients"] - cells[classes, people, 1]["open_rows"] <= 0.5
    mnist = pd.read_csv(PAPERS / "neuromixgdp/results/mnist.csv", comment="#")
    reached = mnist.set_index(["data", "kind", "method", "epsilon"])["mean"].sort_index()
    clothes = reached["fashion", "encoder"]
    assert f"reaches {clothes['open_rows', 1]:.1f} %, and private descent {clothes['gradients', 1]:.1f} %" in page
