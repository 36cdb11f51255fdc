"""Heads: components and the best head of public images, those of released rows, and that of class means."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from zetadp.nn.class_means import ClassMeans, public_means
from zetadp.nn.heads import RIDGE, RowExamples, fit_head, fit_head_to_rows, fit_projection, head_scores
from zetadp.nn.mixture import Labelled, OpenToClasses


@pytest.fixture(scope="module")
def drawn():
    """Return correlated features of unequal scale whose classes differ in three directions of small variance."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat(2000)
    mixing = torch.randn(12, 12, generator=random)
    scales = torch.logspace(0, -0.3, 12)
    means = torch.zeros(4, 12)
    means[:, 9:] = torch.randn(4, 3, generator=random)
    latent = (torch.randn(len(labels), 12, generator=random) + means[labels]) * scales
    return latent @ mixing + 5, labels


def test_components_are_uncorrelated_with_unit_variance_and_the_first_tell_the_classes_apart(drawn):
    features, labels = drawn
    centre, projection = fit_projection(features, labels)
    parts = ((features - centre) @ projection).double()
    assert parts.mean(dim=0).abs().max() < 1e-4
    covariance = torch.cov(features.T.double(), correction=0)
    ridge = RIDGE * covariance.diagonal().mean() * torch.eye(12, dtype=torch.float64)
    found = projection.T.double() @ (covariance + ridge) @ projection.double()
    torch.testing.assert_close(found, torch.eye(12, dtype=torch.float64), rtol=0, atol=1e-4)
    assert torch.cov(parts.T, correction=0).diagonal().max() < 1 + 1e-4
    means = torch.stack([parts[labels == c].mean(dim=0) for c in range(4)])
    told = means.square().sum(dim=0)
    assert told[:3].sum() > 0.999 * told.sum()


def test_components_do_not_follow_the_signs_of_eigenvectors(drawn, monkeypatch):
    """Another processor rounds in another way, and LAPACK then returns other signs."""
    features, labels = drawn
    _, expected = fit_projection(features, labels)
    eigh = torch.linalg.eigh

    def negated(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = eigh(matrix)
        return values, vectors * torch.tensor([1.0, -1.0]).repeat(len(values))[: len(values)]

    monkeypatch.setattr(torch.linalg, "eigh", negated)
    _, projection = fit_projection(features, labels)
    torch.testing.assert_close(projection, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [2, 6])
def test_the_head_has_the_least_cross_entropy(drawn, count):
    """At the minimum of a convex loss its gradient vanishes."""
    features, labels = drawn
    centre, projection = fit_projection(features, labels)
    parts = (features - centre) @ projection
    weight, bias = fit_head(parts, labels, count)
    assert weight.shape == (4, count)
    pairs = torch.view_as_complex(parts.reshape(len(parts), 6, 2))[:, :count]
    weight, bias = weight.requires_grad_(), bias.requires_grad_()
    scores = (pairs @ weight.T + bias).real
    torch.nn.functional.cross_entropy(scores, labels).backward()
    assert weight.grad.abs().max() < 2e-3
    assert bias.grad.abs().max() < 2e-3
    assert (scores.argmax(dim=1) == labels).float().mean() > 0.5


ROWS, KINDS = 6000, 3


def rows(deviation: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features under noise, labels that follow from them without it, and the weights that do."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(KINDS, 5, generator=generator)
    clean = torch.randn(ROWS, 5, generator=generator) + 2
    noise = deviation * torch.randn(ROWS, 5, generator=generator)
    return clean + noise, clean @ weights.T + 0.5, weights


@pytest.mark.parametrize("deviation", [0.5, 1.0])
def test_the_weights_are_those_of_features_without_noise(deviation):
    seen, labels, weights = rows(deviation)
    found, bias = fit_head_to_rows(RowExamples(torch.complex(seen, torch.zeros_like(seen)), labels, deviation**2))
    assert not found.imag.any()
    assert (found.real - weights).norm() < 0.1 * weights.norm()
    torch.testing.assert_close(bias.real, torch.full((KINDS,), 0.5), atol=0.4, rtol=0)
    # Least squares that does not know of the noise shrinks the weights by 1 / (1 + deviation^2).
    assert found.real.norm() > 1.1 * weights.norm() / (1 + deviation**2)
    other = deviation * torch.randn(seen.shape, generator=torch.Generator().manual_seed(2))
    turned, _ = fit_head_to_rows(RowExamples(torch.complex(other, seen), labels, deviation**2))
    assert (-turned.imag - weights).norm() < 0.15 * weights.norm()


def few_rows(people: int, sampling: str) -> tuple[RowExamples, torch.Tensor, torch.Tensor]:
    """Return as many rows as people, whose noise exceeds their signal, and other people's features and classes."""
    generator = torch.Generator().manual_seed(people)
    classes, numbers, mixed, deviation = 10, 200, 3.0, 0.4
    share = 0.3 if sampling == "hierarchical" else 1.0
    scales = torch.arange(1, numbers + 1) ** -0.5
    centres = 0.7 * scales * torch.randn(classes, numbers, generator=generator)

    def drawn(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % classes
        values = centres[labels] + scales * torch.randn(count, numbers, generator=generator)
        return functional.normalize(values), labels

    features, labels = drawn(people)
    schedule = torch.rand(people, classes, generator=generator) < share
    members = schedule[:, labels] * (torch.rand(people, people, generator=generator) < mixed / people / share)
    rows = members.float() @ features / mixed + deviation * torch.randn(people, numbers, generator=generator)
    shares = members.float() @ torch.eye(classes)[labels] / mixed
    noisy = shares + deviation * torch.randn(shares.shape, generator=generator)
    known = schedule / (classes * share)
    examples = RowExamples(
        torch.complex(rows, torch.zeros_like(rows)), known if sampling == "hierarchical" else noisy, deviation**2
    )
    return examples, *drawn(4000)


@pytest.mark.parametrize("sampling", ["Poisson", "hierarchical"])
@pytest.mark.parametrize("people", [800, 2400])
def test_few_rows_give_the_accuracy_of_the_best_ridge(people, sampling):
    examples, features, labels = few_rows(people, sampling)

    def accuracy(head: tuple[torch.Tensor, torch.Tensor]) -> float:
        return float((head_scores(features.to(torch.complex64), head).argmax(dim=1) == labels).float().mean())

    x, y = examples.features.real.double(), examples.labels.double()
    means, shares = x.mean(dim=0), y.mean(dim=0)
    moments, products = torch.cov(x.T), (x - means).T @ (y - shares) / len(x)
    best = 0.0
    for ridge in (0.0, 0.5, 1.0, 2.0, 5.0, 20.0):  # the people's classes choose among heads that subtract nothing
        weights = torch.linalg.solve(moments + ridge * examples.noise * torch.eye(len(moments)), products).T
        best = max(best, accuracy((weights.to(torch.complex64), (shares - weights @ means).to(torch.complex64))))
    assert accuracy(fit_head_to_rows(examples)) > best - 0.01
    assert best > 0.3


@pytest.mark.parametrize("count", [1, 2, 13])
def test_fewer_rows_than_numbers_give_a_finite_head(count):
    seen, labels, _ = rows(0.5)
    weight, bias = fit_head_to_rows(RowExamples(torch.complex(seen, seen)[:count], labels[:count], 0.25))
    assert weight.isfinite().all()
    assert bias.isfinite().all()


@pytest.mark.parametrize("scale", [1 / 60, 5.0])
def test_the_scale_of_features_does_not_change_the_head(scale):
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(KINDS, (400,), generator=generator)
    seen = torch.complex(torch.eye(KINDS, 5)[labels] + torch.randn(400, 5, generator=generator), torch.zeros(400, 5))
    weight, bias = fit_head_to_rows(RowExamples(seen, torch.eye(KINDS)[labels]))
    scaled, scaled_bias = fit_head_to_rows(RowExamples(scale * seen, torch.eye(KINDS)[labels]))
    torch.testing.assert_close(scale * scaled, weight, rtol=0.01, atol=1e-3)
    torch.testing.assert_close(scaled_bias, bias, rtol=0.01, atol=1e-3)
    assert weight.norm() > 0.1


def mixture(sampling: str) -> Labelled:
    common = (4, KINDS, 5, 2.0, 1.0, True)
    if sampling == "Poisson":
        return Labelled(*common, share_of_labels=0.5, real=True)
    return OpenToClasses(*common, share_of_labels=0.0, real=True, seed=0, open_rows=2, shares=(0.6, 0.3, 0.1))


@pytest.mark.parametrize("sampling", ["Poisson", "hierarchical"])
def test_the_noise_of_features_is_that_of_the_row_over_their_scale(sampling):
    mixed = mixture(sampling)
    row = torch.zeros(4, mixed.dimension)
    row[:, 0] = 0.1  # as large as the noise
    found = mixed.examples(row, 0.1)
    assert found.noise == pytest.approx(float(found.features[0, 0].real) ** 2)
    assert mixed.examples(row).noise == 0


CLASSES, COMPONENTS, BOUND = 4, 3, 0.7
LABELS = torch.arange(CLASSES).repeat_interleave(5)


def made(shares: tuple[float, ...] = (1 / CLASSES,) * CLASSES, **more) -> ClassMeans:
    return ClassMeans(COMPONENTS, shares, norm=1.0, bound=BOUND, **more)


def features(count: int) -> torch.Tensor:
    """Return features with a mean for each class, shape (patient, image, 1, 1, component)."""
    random = np.random.default_rng(0)
    means = random.standard_normal((2, 1, CLASSES, COMPONENTS))[:, :, LABELS]
    values = torch.from_numpy(means + random.standard_normal((2, count, len(LABELS), COMPONENTS)))
    return torch.complex(values[0], values[1])[:, :, None, None].to(torch.complex64)


def labels(count: int) -> torch.Tensor:
    return LABELS.expand(count, -1)


def pooled(values: torch.Tensor) -> np.ndarray:
    return values.flatten(0, 1).flatten(1).numpy().astype(complex)


@pytest.mark.parametrize("counts", [(5, 5, 5, 5), (1, 9, 3, 7)])
def test_no_contribution_is_longer_than_the_bound_and_the_worst_reaches_it(counts):
    shares = tuple(count / sum(counts) for count in counts)
    statistic = made(shares)
    classes = torch.arange(CLASSES).repeat_interleave(torch.tensor(counts))
    generator = torch.Generator().manual_seed(0)
    longest = 0.0
    for scale in (0.1, 1.0, 10.0, 1e4):
        for alike in (0.0, 1.0, 100.0):  # images of one patient that differ less and less
            own = torch.randn(50, len(classes), 1, 1, COMPONENTS, dtype=torch.complex64, generator=generator)
            common = torch.randn(50, 1, 1, 1, COMPONENTS, dtype=torch.complex64, generator=generator)
            found = statistic(scale * (own + alike * common), classes.expand(50, -1))
            assert found.shape == (50, statistic.dimension)
            longest = max(longest, float(found.double().norm(dim=1).max()))
    assert 0.999 * BOUND < longest < BOUND * (1 + 1e-5)


def test_without_noise_the_class_means_are_those_of_all_images():
    statistic, values = made(clipped=False), features(30)
    head = statistic.head(statistic(values, labels(30)).mean(dim=0), 0.0, None)
    images, classes = pooled(values), LABELS.repeat(30).numpy()
    means = np.stack([images[classes == c].mean(axis=0) for c in range(CLASSES)])
    distances = np.square(np.abs(images[:, None] - means)).sum(axis=2)
    scores = head_scores(torch.from_numpy(images), head).numpy()
    np.testing.assert_allclose(scores - scores[:, :1], (distances[:, :1] - distances) / 2, atol=1e-4)
    assert (scores.argmax(axis=1) == distances.argmin(axis=1)).all()


def test_much_noise_leaves_the_public_classes():
    start = torch.randn(CLASSES, COMPONENTS, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
    statistic = made()
    noise = torch.randn(statistic.dimension, generator=torch.Generator().manual_seed(4))
    weight, _ = statistic.head(1e4 * noise, 1e4, start)
    torch.testing.assert_close(weight, public_means(start).conj(), rtol=1e-3, atol=1e-3)


def test_public_means_are_those_of_gaussian_classes_whose_best_head_is_given():
    random = np.random.default_rng(0)
    means = torch.from_numpy(random.standard_normal((CLASSES, 4)))
    classes = torch.arange(CLASSES).repeat(20_000)
    draws = means[classes] + torch.from_numpy(random.standard_normal((len(classes), 4)))
    centre, projection = fit_projection(draws, classes)
    x = (draws.float() - centre) @ projection
    means = torch.stack([x[classes == c].mean(dim=0) for c in range(CLASSES)])
    within = torch.cov((x - means[classes]).T)
    pairs = torch.linalg.solve(within, means.T).T.reshape(CLASSES, 2, 2)
    # Re(conj(w) z) is the inner product of the pairs; what all classes share is no part of it.
    weight = torch.complex(pairs[..., 0], -pairs[..., 1]) + (1 + 2j)
    found = torch.view_as_real(public_means(weight)).flatten(1)
    np.testing.assert_allclose(found.numpy(), means.numpy(), atol=0.02)
    assert np.abs(means.numpy()).max() > 0.5
