r"""Abstention: when a head on the shipped backbone should not answer.

There are two reasons. The head is *unsure* of its answer, or the volume is *unlike* all volumes that are known. Both
thresholds come from simulated patients on whom no network was trained. No patient of a cohort is used.

A volume is *unsure* if the largest softmax of its mean scores is below a threshold, after temperature scaling (Guo et
al. 2017, On calibration of modern neural networks, eq. 9). Temperature and threshold are fitted to each head. A volume
is *unlike* if the smallest Mahalanobis distance of its mean features to a class is above a threshold (Lee et al. 2018,
A simple unified framework for detecting out-of-distribution samples, eq. 2). The head does not change this threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.base.tensors import load_tensors, save_tensors, tensors_digest
from zetadp.core.pretrained import FinishedModel
from zetadp.nn.backbone import Backbone
from zetadp.nn.settings import STUDY

DATA = Path(__file__).parents[2] / "data"
FILES = {
    "features": "abstention.safetensors",
    "layers": "abstention_layers.safetensors",
    STUDY: "abstention_study.safetensors",
}
"""Name of the package's file of public features, for heads of each domain."""
UNSURE, UNLIKE = "unsure", "unlike"
COMPONENTS = 16
"""Number of complex components in which distances are measured."""
RIGHT = 0.95
"""Share of correct answers that the threshold must reach on the simulated patients to whom it is fitted."""
KNOWN = 0.99
"""Share of the volumes of these patients that must count as known."""
FEWEST = 20
"""Smallest number of answers from which a share of correct answers is computed."""
_TEMPERATURES = np.geomspace(0.05, 20, 300)


@dataclass(frozen=True)
class Public:
    """Public features of simulated patients' volumes. A volume's features are means over its slices.

    Attributes
    ----------
    features
        Features of the volumes to which thresholds are fitted, complex, shape (volume, component).
    labels
        Classes of these volumes, shape (volume,).
    means
        Class means in the first components, real parts first, shape (class, 2 * `COMPONENTS`).
    precision
        Inverse covariance within classes, shape (2 * `COMPONENTS`, 2 * `COMPONENTS`).
    farthest
        Largest distance of a known volume from its nearest class. The share `KNOWN` of these volumes is known.
    about
        How the features were made, and the hash of the backbone.
    """

    features: Tensor
    labels: Tensor
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
            How the features were made, and the hash of the backbone.
        """
        vectors = _vectors(torch.from_numpy(first))
        means = vectors.mean(dim=0)
        rest = (vectors - means).flatten(0, 1)
        precision = torch.linalg.inv(rest.T @ rest / len(rest)).contiguous()
        patients, classes, _ = second.shape
        # Half precision is far finer than patients differ, and halves the file.
        features = torch.view_as_complex(torch.view_as_real(torch.from_numpy(second)).half().float()).flatten(0, 1)
        found = cls(features, torch.arange(classes).repeat(patients), means, precision, 0.0, about)
        farthest = float(np.quantile(found.distances(features).numpy(), KNOWN))
        return cls(features, found.labels, means, precision, farthest, about)

    def distances(self, features: Tensor) -> Tensor:
        """Return the Mahalanobis distance of each volume from its nearest class, shape (volume,).

        Distances are divided by the square root of the number of real dimensions.

        Parameters
        ----------
        features
            Complex mean features, shape (volume, component).
        """
        apart = _vectors(features)[:, None] - self.means
        squares = torch.einsum("vci,ij,vcj->vc", apart, self.precision, apart)
        return (squares.amin(dim=1) / self.means.shape[1]).sqrt()

    def save(self, domain: str) -> None:
        """Write the file of the package for heads of a domain."""
        tensors = {"features": torch.view_as_real(self.features).half(), "labels": self.labels, "means": self.means}
        save_tensors(
            DATA / FILES[domain], tensors | {"precision": self.precision}, {**self.about, "farthest": self.farthest}
        )

    @classmethod
    def load(cls, domain: str) -> Self:
        """Read the file of the package for heads of a domain."""
        tensors, about = load_tensors(DATA / FILES[domain])
        features = torch.view_as_complex(tensors["features"].float())
        return cls(features, tensors["labels"], tensors["means"], tensors["precision"], about["farthest"], about)


@dataclass(frozen=True)
class Abstention:
    """The thresholds of one model.

    Attributes
    ----------
    public
        Public features to which the thresholds are fitted.
    temperature
        Divisor of scores before the softmax.
    least
        Smallest probability of a sure answer. Infinite if no threshold reaches the share `RIGHT`: then no answer is
        sure.
    """

    public: Public
    temperature: float
    least: float

    @classmethod
    def of(cls, network: nn.Module, public: Public) -> Self:
        """Fit temperature and threshold to a head."""
        scores = _scores(network, public.features)
        losses = [float(nn.functional.cross_entropy(scores / t, public.labels)) for t in _TEMPERATURES]
        temperature = float(_TEMPERATURES[int(np.argmin(losses))])
        sure, told = (scores / temperature).softmax(dim=1).max(dim=1)
        return cls(public, temperature, threshold(sure.numpy(), (told == public.labels).numpy()))

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return calibrated probabilities from the mean scores of volumes, both of shape (volume, class)."""
        return (scores / self.temperature).softmax(dim=1)

    def verdicts(self, features: Tensor, probabilities: Tensor) -> list[str]:
        """Return `UNLIKE`, `UNSURE` or an empty text for each volume. `UNLIKE` takes precedence.

        Parameters
        ----------
        features
            Complex mean features, shape (volume, component).
        probabilities
            Result of `probabilities`, shape (volume, class).
        """
        far = self.public.distances(features) > self.public.farthest
        weak = probabilities.amax(dim=1) < self.least
        return [UNLIKE if f else UNSURE if w else "" for f, w in zip(far.tolist(), weak.tolist(), strict=True)]


def abstention_for(model: FinishedModel) -> Abstention | None:
    """Return the thresholds of a model, or None if the model is not a head on the shipped backbone."""
    if not isinstance(model.backbone, Backbone) or model.settings.family != "head":
        return None
    public = _shipped(model.settings.domain)
    if tensors_digest(model.backbone.tensors()) != public.about["backbone"]:
        return None
    return Abstention.of(model.network, public)


def threshold(sure: np.ndarray, right: np.ndarray) -> float:
    """Return the smallest threshold at which the share of correct answers is at least `RIGHT`.

    Answers whose probability is at or above the threshold count. The result is infinite if no threshold reaches the
    share with at least `FEWEST` answers.

    Parameters
    ----------
    sure
        Probability of each answer, shape (answer,).
    right
        Whether each answer is correct, shape (answer,).
    """
    order = np.argsort(-sure, kind="stable")
    numbers = np.arange(1, len(order) + 1)
    # A threshold includes either all answers of equal probability or none of them.
    last = np.append(np.diff(sure[order]) != 0, True)
    enough = np.flatnonzero((np.cumsum(right[order]) / numbers >= RIGHT) & last & (numbers >= FEWEST))
    return float(sure[order[enough[-1]]]) if len(enough) else float("inf")


@cache
def _shipped(domain: str) -> Public:
    return Public.load(domain)


def _vectors(features: Tensor) -> Tensor:
    """Return the first components as real vectors, real parts first."""
    first = features[..., :COMPONENTS]
    return torch.cat([first.real, first.imag], dim=-1)


def _scores(network: nn.Module, features: Tensor) -> Tensor:
    """Return the mean scores of volumes. A head is affine, so these are the scores of the mean features."""
    with torch.no_grad():
        return network(features[:, None, None])  # type: ignore[no-any-return]
