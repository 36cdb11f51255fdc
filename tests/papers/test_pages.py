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
SHOWN = [
    ("complex_mri", "table", GRID, "{mean:.1f} ± {std:.1f}"),
    ("complex_mri", "table", {"network": ["faster", "per_image"]}, "{mean:.1f}"),
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
    ("neuromixgdp", "sweep", {}, "{mean:.1f} ± {std:.1f}"),
    *(
        ("neuromixgdp", "cifar100", {"data": ["CIFAR-100"], "class_rate": [share]}, "| {true:.3g} | {descent:.1f} |")
        for share in (0.03, 0.1, 0.3)
    ),
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
