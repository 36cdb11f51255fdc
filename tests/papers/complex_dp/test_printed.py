"""The papers' printed figures against the truth: spec values from an independent calculation, and the docs' table."""

from pathlib import Path

import pytest

from papers.complex_dp.printed import ZILLER, as_added, as_claimed, markdown, riess_row
from zetadp.base.epsilon import rounded_up

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs/printed.md"
# Independently computed with a privacy-loss-distribution accountant: epsilon with the printed multiplier and with
# the printed multiplier divided by sqrt(2).
TRUE = {
    "PhaseMNIST": (1.52, 3.40),
    "ECG": (1.50, 2.29),
    "Speech commands": (1.24, 3.31),
    "fastMRI knee, per slice": (0.13, 0.26),
}


@pytest.mark.parametrize("claim", ZILLER, ids=lambda claim: claim.experiment)
def test_true_epsilons_agree_with_an_independent_calculation(claim):
    assert (as_claimed(claim), as_added(claim)) == pytest.approx(TRUE[claim.experiment], abs=0.011)
    assert as_added(claim) > as_claimed(claim)


@pytest.mark.parametrize(
    ("target", "noise", "limit", "half"),
    [
        (1, 42.55, 1.0004, 1.51),
        (3, 17.16, 3.0017, 4.63),
        (5, 11.42, 5.0018, 7.84),
        (8, 7.96, 7.994, 12.8),
        (10, 6.74, 9.983, 16.2),
    ],
)
def test_the_second_papers_targets(target, noise, limit, half):
    assert riess_row(target) == pytest.approx((noise, limit, half), rel=6e-3)
    # The central limit formula is not a bound: at small targets its noise is too small.
    assert (riess_row(target)[1] > target) == (target <= 5)


def test_the_page_shows_what_the_library_computes():
    assert markdown() in DOCS.read_text(encoding="utf-8"), "Run: python -m papers.complex_dp.printed"


@pytest.mark.parametrize("claim", ZILLER, ids=lambda claim: claim.experiment)
def test_the_page_of_the_paper_rounds_every_true_epsilon_up(claim):
    page = (ROOT / "papers/complex_dp/README.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if f"ε = {claim.epsilon:g}" in line and line.startswith("| Table"))
    true = row.split("|")[3]
    assert f"ε = {rounded_up(as_added(claim), 3)}" in true, row
