r"""Thresholds of probability and distance beyond which a model of domain ``study`` should not answer.

There are two reasons. The head is *unsure* of its answer, or the volume is *unlike* all known volumes. Both
thresholds come from simulated patients on whom no network was trained. No patient of a cohort is used.

A volume is *unsure* if the probability of its answer is below a threshold, after temperature scaling (Guo et al. 2017,
On calibration of modern neural networks, eq. 9). The probability follows from the mean scores of the slices of all four
volumes of a patient: the sequences all differ. If a public and a private head answer together, the probability is
the mean of that of both heads and that of the public head. An answer that surprises the public head therefore
needs more support from the private head. Temperatures and threshold are fitted to each head. For a patient with two
or three sequences, they are fitted to all choices of as many sequences of the simulated patients. A volume is *unlike*
if the smallest Mahalanobis distance of its mean features to a class is above a threshold (Lee et al. 2018, A simple
unified framework for detecting out-of-distribution samples, eq. 2). The features are taken before the patient's mean is
subtracted, because little would be left of four similar images. The head does not change this threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.brain.images import PUBLIC_FEATURES as FILE
from zetadp.brain.images import by_orders, has_thresholds
from zetadp.brain.task import BrainSequences
from zetadp.mri.decathlon import SEQUENCES
from zetadp.nn.heads import head_scores
from zetadp.training.pretrained import FinishedModel

UNSURE, UNLIKE = "unsure", "unlike"
COMPONENTS = 16
"""Number of complex components in which distances are measured."""
RIGHT = 0.99
"""Share of correct answers that the threshold must reach on the simulated patients to whom it is fitted."""
KNOWN = 0.99
"""Share of the volumes of these patients that must count as known."""
FEWEST = 20
"""Smallest number of answers from which a share of correct answers is computed."""
_TEMPERATURES = np.geomspace(0.05, 20, 300)


@dataclass(frozen=True)
class PublicFeatures:
    """Public features of simulated patients' volumes, before a patient's mean is subtracted: means over slices.

    Attributes
    ----------
    features
        Features of the patients to whom thresholds are fitted, complex, shape (patient, class, component).
    means
        Class means in the first components, real parts first, shape (class, 2 * `COMPONENTS`).
    precision
        Inverse covariance within classes, shape (2 * `COMPONENTS`, 2 * `COMPONENTS`).
    farthest
        Largest distance of a known volume from its nearest class. The share `KNOWN` of these volumes is known.
    about
        Origin of the features, and the hash of the backbone.
    """

    features: Tensor
    means: Tensor
    precision: Tensor
    farthest: float
    about: dict[str, Any]

    @classmethod
    def fit(cls, first: np.ndarray, second: np.ndarray, about: dict[str, Any]) -> Self:
        """Fit the classes to one group of patients and the distance threshold to another.

        Parameters
        ----------
        first, second
            Complex mean features, shape (patient, class, component). Class means and precision come from the first
            group, the threshold from the second.
        about
            Origin of the features, and the hash of the backbone.
        """
        vectors = _real_vectors(torch.from_numpy(first))
        means = vectors.mean(dim=0)
        rest = (vectors - means).flatten(0, 1)
        precision = torch.linalg.inv(rest.T @ rest / len(rest)).contiguous()
        # Half precision is far finer than the differences between patients, and halves the file.
        features = torch.view_as_complex(torch.view_as_real(torch.from_numpy(second)).half().float())
        without_threshold = cls(features, means, precision, 0.0, about)
        return replace(
            without_threshold,
            farthest=float(np.quantile(without_threshold.distances(features.flatten(0, 1)).numpy(), KNOWN)),
        )

    def distances(self, features: Tensor) -> Tensor:
        """Return the Mahalanobis distance of each volume from its nearest class, shape (volume,).

        Distances are divided by the square root of the number of real dimensions.

        Parameters
        ----------
        features
            Complex mean features, shape (volume, component).
        """
        offsets = _real_vectors(features)[:, None] - self.means
        squares = torch.einsum("vci,ij,vcj->vc", offsets, self.precision, offsets)
        return (squares.amin(dim=1) / self.means.shape[1]).sqrt()

    def save(self) -> None:
        """Write the file of the package."""
        tensors = {"features": torch.view_as_real(self.features).half(), "means": self.means}
        save_tensors(FILE, tensors | {"precision": self.precision}, {**self.about, "farthest": self.farthest})

    @classmethod
    @cache
    def load(cls) -> Self:
        """Read the file of the package."""
        tensors, about = load_tensors(FILE)
        features = torch.view_as_complex(tensors["features"].float())
        return cls(features, tensors["means"], tensors["precision"], about["farthest"], about)


@dataclass(frozen=True)
class Abstention:
    """The thresholds of one model.

    Attributes
    ----------
    public
        Public features to which the thresholds are fitted.
    temperatures
        Divisor of the scores of each head in the result of `mean_scores`.
    least
        Smallest probability of a sure answer. Infinite if no threshold reaches the share `RIGHT`: then no answer is
        sure.
    """

    public: PublicFeatures
    temperatures: tuple[float, ...]
    least: float

    def probabilities(self, scores: Sequence[Tensor]) -> Tensor:
        """Return calibrated probabilities, shape (patient, volume, class), from `mean_scores`: means over heads."""
        return _calibrate(scores, self.temperatures)

    def verdicts(self, features: Tensor, confidence: Tensor) -> list[str]:
        """Return `UNLIKE`, `UNSURE` or an empty text for each volume. `UNLIKE` takes precedence.

        Parameters
        ----------
        features
            Complex mean features, before a patient's mean is subtracted, shape (volume, component).
        confidence
            Probability of the answers (`probabilities`), shape (volume,).
        """
        far, weak = self.public.distances(features) > self.public.farthest, confidence < self.least
        return [UNLIKE if f else UNSURE if w else "" for f, w in zip(far.tolist(), weak.tolist(), strict=True)]


def mean_scores(model: FinishedModel, features: Tensor) -> list[Tensor]:
    """Return mean scores of volumes: those of the model and, if it has one, those of its public head.

    Heads are affine, so these are the scores of the mean features.

    Parameters
    ----------
    model
        A head on features of a study.
    features
        Mean features of volumes before a patient's mean is subtracted, shape (patient, volume, component), with as many
        volumes as classes. Those that a patient lacks are NaN.

    Returns
    -------
    For each of the one or two heads, shape (patient, volume, class).
    """
    # NaN in both parts of absent features keeps them out of the mean.
    parts = torch.view_as_real(features.masked_fill(features.isnan(), complex(torch.nan, torch.nan)))
    features = torch.view_as_complex(parts - parts.nanmean(dim=1, keepdim=True))
    inputs = features.flatten(0, 1)[:, None, None]
    scores_by_head = [replace(model, task=BrainSequences(slices=1)).outputs(inputs)]
    if model.public_head is not None:
        scores_by_head.append(head_scores(features.flatten(0, 1), model.public_head))
    return [scores.reshape(*features.shape[:2], -1) for scores in scores_by_head]


def abstention_for(model: FinishedModel, volumes: int = len(SEQUENCES)) -> Abstention | None:
    """Return the thresholds of a model, or None if the model is not a head on a study of the shipped backbone.

    Parameters
    ----------
    model
        A finished model.
    volumes
        Number of sequences of the patients to whom it is applied. Thresholds are fitted to all choices of this many.
    """
    if not has_thresholds(model.settings.domain, model.backbone):
        return None
    public = PublicFeatures.load()
    features, labels = choices_of(public.features, volumes)
    scores, present = mean_scores(model, features), labels >= 0
    divisors = []
    for head in scores:
        candidates = [_calibrate([head], [divisor])[present].clamp_min(1e-9).log() for divisor in _TEMPERATURES]
        losses = [nn.functional.nll_loss(log_probabilities, labels[present]) for log_probabilities in candidates]
        divisors.append(float(_TEMPERATURES[int(np.argmin(losses))]))
    confidence, predicted = _calibrate(scores, divisors)[present].max(dim=1)
    return Abstention(public, tuple(divisors), threshold(confidence.numpy(), (predicted == labels[present]).numpy()))


def choices_of(features: Tensor, volumes: int) -> tuple[Tensor, Tensor]:
    """Return the features of patients for every choice of this many volumes, and the classes of the volumes.

    Parameters
    ----------
    features
        Shape (patient, class, component).
    volumes
        Number of volumes to choose.

    Returns
    -------
    features, labels
        Features of shape (choice and patient, class, component), NaN for volumes that were not chosen, and labels of
        shape (choice and patient, class), -1 for those.
    """
    classes = features.shape[1]
    chosen = torch.tensor([[c in choice for c in range(classes)] for choice in combinations(range(classes), volumes)])
    labels = torch.where(chosen, torch.arange(classes), -1)[:, None].expand(-1, len(features), -1)
    parts = torch.where(chosen[:, None, :, None], features, torch.nan)
    return parts.flatten(0, 1), labels.flatten(0, 1)


def _calibrate(scores: Sequence[Tensor], temperatures: Sequence[float]) -> Tensor:
    """Return probabilities of classes, given that the volumes of a patient all differ, as means over heads."""
    scaled = torch.stack([head / divisor for head, divisor in zip(scores, temperatures, strict=True)])
    return by_orders(scaled).mean(dim=0)


def threshold(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the smallest threshold at which the share of correct answers is at least `RIGHT`.

    Answers whose probability is at or above the threshold count. The result is infinite if no threshold reaches the
    share with at least `FEWEST` answers.

    Parameters
    ----------
    confidence
        Probability of each answer, shape (answer,).
    right
        Whether each answer is correct, shape (answer,).
    """
    order = np.argsort(-confidence, kind="stable")
    numbers = np.arange(1, len(order) + 1)
    # A threshold includes either all answers of equal probability or none of them.
    last = np.append(np.diff(confidence[order]) != 0, True)
    enough = np.flatnonzero((np.cumsum(right[order]) / numbers >= RIGHT) & last & (numbers >= FEWEST))
    return float(confidence[order[enough[-1]]]) if len(enough) else float("inf")


def _real_vectors(features: Tensor) -> Tensor:
    """Return the first components as real vectors, real parts first."""
    first = features[..., :COMPONENTS]
    return torch.cat([first.real, first.imag], dim=-1)
