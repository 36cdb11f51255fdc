r"""When a head on the shipped backbone should not answer: it is unsure, or its input is like nothing that it knows.

Both thresholds come from simulated patients whom nothing was trained on; no patient of a cohort takes part. *Unsure*
is the largest softmax of a volume's mean scores, after temperature scaling (Guo et al. 2017, On calibration of modern
neural networks, eq. 9). Temperature and threshold are fitted to the head at hand. *Unlike* is the smallest Mahalanobis
distance of a volume's mean features to a class (Lee et al. 2018, A simple unified framework for detecting
out-of-distribution samples, eq. 2), which the head does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from zetadp.core.pretrained import FinishedModel
from zetadp.nn.backbone import Backbone
from zetadp.nn.settings import STUDY
from zetadp.tensors import load_tensors, save_tensors, tensors_digest

DATA = Path(__file__).parents[2] / "data"
FILES = {
    "features": "abstention.safetensors",
    "layers": "abstention_layers.safetensors",
    STUDY: "abstention_study.safetensors",
}
"""File of the package for heads of each domain."""
UNSURE, UNLIKE = "unsure", "unlike"
COMPONENTS = 16
"""Complex components in which distances are measured."""
RIGHT = 0.95
"""Share of the answers that must be right on the simulated patients to whom the threshold is fitted."""
KNOWN = 0.99
"""Share of their volumes that must count as known."""
FEWEST = 20
"""Answers without which a share says too little."""
_TEMPERATURES = np.geomspace(0.05, 20, 300)


@dataclass(frozen=True)
class Public:
    """What is known of simulated patients' volumes; features are means over a volume's slices.

    Attributes
    ----------
    features
        Of the patients to whom thresholds are fitted, complex, shape (volume, component).
    labels
        Their classes, shape (volume,).
    means
        Means of the classes in the first components, real parts first, shape (class, 2 * `COMPONENTS`).
    precision
        Inverse covariance within classes, shape (2 * `COMPONENTS`, 2 * `COMPONENTS`).
    farthest
        Distance from the nearest class that the share `KNOWN` of the volumes does not exceed.
    about
        How it was made, and the hash of the backbone.
    """

    features: Tensor
    labels: Tensor
    means: Tensor
    precision: Tensor
    farthest: float
    about: dict[str, Any]

    @classmethod
    def fit(cls, first: np.ndarray, second: np.ndarray, about: dict[str, Any]) -> Self:
        """Learn the classes from the first patients and the thresholds from the second.

        Parameters
        ----------
        first, second
            Complex mean features, shape (patient, class, component).
        about
            How they were made.
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
        """Return distances of volumes from the nearest class, shape (volume,), in standard deviations a dimension."""
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
    """When one model should not answer.

    Attributes
    ----------
    public
        What it is fitted to.
    temperature
        What scores are divided by before the softmax.
    least
        Answers with a smaller largest probability are unsure; infinite where no threshold gives the share `RIGHT`.
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
        """Return calibrated probabilities of volumes from their mean scores, shape (volume, class)."""
        return (scores / self.temperature).softmax(dim=1)

    def verdicts(self, features: Tensor, probabilities: Tensor) -> list[str]:
        """Return for each volume `UNLIKE`, `UNSURE` or an empty text, from mean features and probabilities."""
        far = self.public.distances(features) > self.public.farthest
        weak = probabilities.amax(dim=1) < self.least
        return [UNLIKE if f else UNSURE if w else "" for f, w in zip(far.tolist(), weak.tolist(), strict=True)]


def abstention_for(model: FinishedModel) -> Abstention | None:
    """Return when a model should not answer; None where nothing is known: it is no head on the shipped backbone."""
    if not isinstance(model.backbone, Backbone) or model.settings.family != "head":
        return None
    public = _shipped(model.settings.domain)
    if tensors_digest(model.backbone.tensors()) != public.about["backbone"]:
        return None
    return Abstention.of(model.network, public)


def threshold(sure: np.ndarray, right: np.ndarray) -> float:
    """Return the least probability at and above which the share `RIGHT` of the answers is right.

    It is infinite where no probability has this property with at least `FEWEST` answers.
    """
    order = np.argsort(-sure, kind="stable")
    numbers = np.arange(1, len(order) + 1)
    # Of equal probabilities all are answered or none.
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
    """Return a head's scores: it is affine, so the scores of mean features are the mean scores."""
    with torch.no_grad():
        return network(features[:, None, None])  # type: ignore[no-any-return]
