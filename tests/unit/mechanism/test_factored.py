from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zetadp.mechanism.factored import Factored


def terms(seed: int, count: int, rows: int, columns: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return factors of three patients; of some kinds terms nearly cancel each other, or differ much in length."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(3, count, rows, generator=generator)
    right = torch.randn(3, count, columns, generator=generator)
    if kind == "cancelling":
        left, right = torch.cat((left, -left), dim=1), torch.cat((right, right), dim=1)
        left = left * (1 + 1e-6 * torch.randn(left.shape, generator=generator))
    if kind == "uneven":
        left = left * 10.0 ** torch.randint(-12, 12, (3, count, 1), generator=generator)
    return left, right


def added_apart(gradients: Factored, factors: torch.Tensor) -> torch.Tensor:
    """Return what is added for each patient, all others having factor zero."""
    size = gradients.left.shape[2] * gradients.right.shape[2] // (2 if gradients.is_complex else 1)
    sums = torch.zeros(len(factors), size, dtype=gradients.left.dtype)
    for total, alone in zip(sums, torch.diag(factors), strict=True):
        gradients.add_to(total, alone)
    return sums


def product(gradients: Factored) -> torch.Tensor:
    """Return each patient's gradient in float64, complex parameters as neighbours."""
    left, right = gradients.left.double(), gradients.right.double()
    if not gradients.is_complex:
        return (left.mT @ right).flatten(1)
    left, right = (torch.complex(*part.chunk(2, dim=2)) for part in (left, right))
    return torch.view_as_real(left.mT @ right.conj()).flatten(1)


@settings(max_examples=300, deadline=None)
@given(
    is_complex=st.booleans(),
    seed=st.integers(0, 9999),
    count=st.integers(1, 9),
    rows=st.integers(1, 40),
    columns=st.integers(1, 300),
    kind=st.sampled_from(["ordinary", "cancelling", "uneven"]),
    scale=st.floats(1e-6, 1),
)
def test_what_is_summed_is_never_longer_than_the_stated_norm(is_complex, seed, count, rows, columns, kind, scale):
    parts = 2 if is_complex else 1
    left, right = terms(seed, count, parts * rows, parts * columns, kind)
    gradients = Factored(left, right, is_complex)
    norms = gradients.norms()
    factors = torch.full((3,), scale)
    sums = added_apart(gradients, factors)
    assert (sums.double().norm(dim=1) <= factors.double() * norms).all()
    exact = product(gradients)
    lengths = (left.double().norm(dim=2) * right.double().norm(dim=2)).sum(dim=1)
    assert (norms >= exact.norm(dim=1)).all()
    # A complex number is the sum of two real ones, whose rounding is longer by the square root of two.
    assert (norms <= exact.norm(dim=1) + parts**0.5 * 2e-6 * lengths).all()
    torch.testing.assert_close(sums.double(), scale * exact, rtol=0, atol=2e-6 * scale * float(lengths.max()))


@settings(max_examples=30)
@given(
    is_complex=st.booleans(),
    seed=st.integers(0, 9999),
    spoilt=st.sampled_from([float("nan"), float("inf"), -float("inf")]),
)
def test_cleaned_gradients_are_zero_where_not_finite(is_complex, seed, spoilt):
    left, right = terms(seed, 2, 4, 6, "ordinary")
    gradients = Factored(left, right, is_complex)
    expected = gradients.smallest(factors=False)
    left[1, 0, 0] = spoilt
    finite = gradients.norms().isfinite()
    assert finite.tolist() == [True, False, True]
    cleaned = gradients.cleaned(finite).smallest(factors=False)
    assert torch.equal(cleaned[[0, 2]], expected[[0, 2]])
    assert not cleaned[1].any()
