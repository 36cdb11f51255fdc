from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from zetadp.nn.closed_form import ClassMeans, public_means
from zetadp.nn.heads import fit_projection, head_scores

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


def test_features_that_are_not_finite_make_a_contribution_that_is_not():
    """What is not finite is found, and left out, where it is clipped."""
    values = features(3)
    values[0, 0, 0, 0, 0], values[1, 2, 0, 0, 1] = math.nan, complex(0, math.inf)
    finite = made()(values, labels(3)).isfinite()
    assert not finite[:2].all(dim=1).any()
    assert finite[2].all()


def test_images_of_weight_zero_change_no_contribution_and_no_bit_of_others():
    images, weights = features(2), torch.full((2, len(LABELS)), 1 / len(LABELS))
    weights[1] = (torch.arange(len(LABELS)) % 5 < 2) / (2 * CLASSES)
    (found,) = made().of_units(images, labels(2), factors=False, weights=weights)
    changed = torch.where((weights > 0)[..., None, None, None], images, -3 * images)
    assert torch.equal(made().of_units(changed, labels(2), factors=False, weights=weights)[0], found)
    assert torch.equal(found[0], made()(images, labels(2))[0])


def test_a_contribution_is_the_mean_over_images_of_one_patient():
    statistic, values = made(), features(4)
    together = statistic(values, labels(4))
    order = torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(1))
    for number in range(4):
        alone = statistic(values[number : number + 1, order], LABELS[order][None])
        torch.testing.assert_close(alone[0], together[number])
    twice = statistic(values.repeat(1, 2, 1, 1, 1), labels(4).repeat(1, 2))
    torch.testing.assert_close(twice, together)


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
