"""Theorem 1 holds for correlated noise, is not the tightest bound, and correlation gains nothing."""

from __future__ import annotations

import numpy as np
import pytest

from papers.complex_mri.correlated import eigenvalue_bound, exact, largest, markdown, theorem_1
from papers.sizes import ROOT


@pytest.mark.parametrize(
    ("correlation", "printed", "tighter"),
    [(0, 1, 1), (0.3, 1.3260, 1.1952), (0.6, 1.8540, 1.5811), (0.9, 3.8389, 3.1623)],
)
def test_both_bounds_have_their_values_at_unit_sensitivities(correlation, printed, tighter):
    assert theorem_1(1, correlation, 1, 1, 1) == pytest.approx(printed, abs=5e-5)
    assert eigenvalue_bound(1, correlation, 1) == pytest.approx(tighter, abs=5e-5)
    assert eigenvalue_bound(1, -correlation, 1) == eigenvalue_bound(1, correlation, 1)


def test_either_bound_can_be_the_smaller_one():
    assert theorem_1(2, 0.5, 1, 0.8, 0.6) == pytest.approx(0.7024, abs=5e-5)
    assert eigenvalue_bound(2, 0.5, 1) == pytest.approx(0.7071, abs=5e-5)


@pytest.mark.parametrize(("correlation", "mu"), [(0.5, 0.416333), (-0.5, 0.702377)])
def test_the_sign_of_the_correlation_matters_for_one_difference(correlation, mu):
    assert exact(2, correlation, np.array([0.8 + 0.6j])) == pytest.approx(mu, abs=1e-6)


def test_the_exact_figure_is_that_of_the_test_by_likelihoods():
    random, correlation = np.random.default_rng(3), 0.6
    difference = np.array([0.5 - 0.4j, 0.3 + 0.8j, -0.2 + 0.1j])
    covariance = np.linalg.inv([[1, correlation], [correlation, 1]])
    step = np.stack([difference.real, difference.imag])
    noise = np.linalg.cholesky([[1, correlation], [correlation, 1]]) @ random.standard_normal((200_000, 2, 3))
    ratio = (np.einsum("ik,ij,njk->n", step, covariance, noise)) - 0.5 * np.einsum("ik,ij,jk->", step, covariance, step)
    assert ratio.std() == pytest.approx(exact(1, correlation, difference), rel=0.01)
    assert -2 * ratio.mean() == pytest.approx(exact(1, correlation, difference) ** 2, rel=0.02)


@pytest.mark.parametrize("correlation", [-0.9, -0.3, 0.5, 0.9])
def test_no_difference_passes_the_bounds_and_equal_parts_reach_the_tighter_one(correlation):
    assert largest(1, correlation) == pytest.approx(eigenvalue_bound(1, correlation, 1))
    assert largest(1, correlation) <= theorem_1(1, correlation, 1, 1, 1)


def test_the_page_shows_the_table_of_the_program():
    assert markdown() in (ROOT / "papers/complex_mri/readings.md").read_text()


@pytest.mark.parametrize("correlation", [-1, 1, 1.5])
def test_a_correlation_that_leaves_a_part_without_noise_is_refused(correlation):
    with pytest.raises(ValueError, match="correlation"):
        theorem_1(1, correlation, 1, 1, 1)
