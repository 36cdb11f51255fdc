r"""Images that an attacker rebuilds from one message of k-space training, with and without noise.

The message is the mean of patients' clipped gradients at the weights at the start of training. Its noise is the noise
that one such message needs for a given epsilon. The attack is that of `zetadp.audit.inversion`. The patients are
simulated for this purpose. For comparison, a guess without a message is scored: the mean of public images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import torch
from scipy.optimize import linear_sum_assignment

from zetadp.audit.inversion import (
    Contributions,
    Objective,
    Search,
    invert,
    whitened_kspace,
    with_what_whitening_loses,
)
from zetadp.base.epsilon import epsilon_label, epsilon_shown
from zetadp.base.randomness import Purpose, stream
from zetadp.base.sheet import MISSING, Sheet
from zetadp.nn.models import NetworkSettings, build
from zetadp.phantom.public import PublicSettings, simulate_public_patient
from zetadp.phantom.scanners import CHANNELS
from zetadp.privacy import gaussian
from zetadp.tasks.reconstruction.quality import nmse, ssim

SEED = 41
"""Seed of the patients, the weights, the noise and the starts of the searches."""
PUBLIC = 40
"""Number of public patients. Their mean image is the guess without a message."""
CANDIDATES = 10
ATTACKS = {"cosine": "direction (IGA)", "euclidean": "distance (DLG)"}
"""Searches, by objective: Geiping et al. (2020), and Zhu et al. (2019) with known labels."""
KIND = ["message", "network", "attack", "epsilon"]


@dataclass(frozen=True)
class Message:
    """One message, and the attack on it.

    Attributes
    ----------
    network, settings
        Name of the network, and the network.
    size
        Side of the images.
    clip
        Norm to which each patient's gradient is clipped.
    patients, images
        Number of patients in the message, and of images of each.
    epsilon, delta
        Guarantee of this one message. An infinite epsilon means no noise.
    objective
        Objective that the attack minimises.
    number
        Distinguishes messages of one kind.
    """

    network: str
    settings: NetworkSettings
    size: int = 32
    clip: float = 1.0
    patients: int = 1
    images: int = 1
    epsilon: float = math.inf
    delta: float = 1e-3
    objective: Objective = "cosine"
    number: int = 0

    @property
    def name(self) -> str:
        """Description of the message's content."""
        images = "1 image" if self.images == 1 else f"{self.images} images"
        return f"1 patient, {images}" if self.patients == 1 else f"mean of {self.patients} patients, {images} each"

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Sequence and slice of each image of a patient. Sequences alternate; the first one depends on the message."""
        order = np.arange(self.images)
        return (order + self.number) % len(CHANNELS), order // len(CHANNELS)

    @property
    def slices(self) -> int:
        """Number of slices of a patient that are needed."""
        return math.ceil(self.images / len(CHANNELS))


@dataclass(frozen=True)
class Rebuilt:
    """True images and those found for them.

    Attributes
    ----------
    message
        The message; None if the attacker saw none.
    true, found
        Shape (image, row, column).
    """

    message: Message | None
    true: np.ndarray
    found: np.ndarray

    def rows(self) -> list[dict[str, object]]:
        """Return one row per image."""
        of = self.message
        kind = ("no message: mean of public images", MISSING, MISSING, 0.0)
        if of is not None:
            kind = (of.name, of.network, ATTACKS[of.objective], of.epsilon)
        return [
            {**dict(zip(KIND, kind, strict=True)), "ssim": similarity(one, other), "nmse": nmse(one, other)}
            for one, other in zip(self.true, self.found, strict=True)
        ]


def rebuild(message: Message, search: Search) -> Rebuilt:
    """Attack one message.

    Nothing distinguishes the images of one sequence in one message. They are matched with the true images in the best
    possible way.
    """
    true = _patients(PUBLIC + message.patients * message.number, message)
    sequences = np.tile(message.places[0], (message.patients, 1))
    model = build(message.settings, len(CHANNELS), message.size, stream(SEED, Purpose.WEIGHTS))
    of = Contributions(model, torch.from_numpy(sequences), whitened_kspace, clip=message.clip)
    seen = of(torch.from_numpy(true)).detach()
    if math.isfinite(message.epsilon):
        noise = torch.from_numpy(stream(SEED, Purpose.NOISE, message.number).standard_normal(len(seen)))
        # Noise of the mean: one patient changes the sum by at most the clipping norm.
        seen = seen + noise * message.clip / message.patients / gaussian.mu(message.epsilon, message.delta)
    guess = torch.from_numpy(np.broadcast_to(_mean(message), true.shape).copy())
    found = invert(seen, of, true.shape, search, torch.Generator().manual_seed(message.number), guess=guess).images
    flat = true.reshape(-1, message.size, message.size)
    return Rebuilt(message, flat, _matched(found.numpy().reshape(flat.shape), flat, sequences.ravel()))


def guessed(message: Message) -> Rebuilt:
    """Return a guess of a message's images, made without the message."""
    true = _patients(PUBLIC + message.patients * message.number, message)
    flat = true.reshape(-1, message.size, message.size)
    found = np.broadcast_to(_mean(message), true.shape).reshape(flat.shape)
    return Rebuilt(None, flat, np.stack([with_what_whitening_loses(*pair) for pair in zip(found, flat, strict=True)]))


def frame(rebuilt: Sequence[Rebuilt]) -> pd.DataFrame:
    """Return the scores, one row per image."""
    return pd.DataFrame([row for each in rebuilt for row in each.rows()])


def sheet(scores: pd.DataFrame, search: Search, delta: float) -> Sheet:
    """Return the scores as a table for readers."""
    lines = []
    for _, own in scores.groupby(KIND, sort=False):
        message, network, attack, epsilon = (own[key].iloc[0] for key in KIND)
        shown = bound = MISSING
        if network != MISSING:
            right = 1 - gaussian.beta(1 / CANDIDATES, gaussian.mu(epsilon, delta)) if math.isfinite(epsilon) else 1.0
            shown, bound = epsilon_shown(epsilon_label(epsilon)), f"{100 * right:.1f} %"
        similar = f"{own['ssim'].mean():.2f} ({own['ssim'].min():.2f} to {own['ssim'].max():.2f})"
        lines.append((message, network, attack, shown, similar, f"{own['nmse'].mean():.3f}", bound, str(len(own))))
    notes = (
        f"The attack: {search.steps} steps of L-BFGS with line search in float64, from a random start "
        "and from the mean of public images. It seeks images whose gradient has the message's direction, or is nearest "
        "to the message. The attacker knows weights, labels, Fourier transform and whitening. What whitening takes "
        "away (a scale of the even and of the odd part of an image, and the centre pixel) is fitted to the true image, "
        "also for the row without a message.",
        f"ε: of this one message, per patient, at δ = {delta:g}. Real trainings send many messages, each with more "
        "noise. ∞: no noise.",
        f"SSIM: mean and range over images. NMSE: mean. One of {CANDIDATES}: how often at most the right one of "
        f"{CANDIDATES} equally likely candidates is named, by any attack (Hayes, Mahloujifar and Balle 2023).",
        "Weights as training begins. Patients are simulated for this alone.",
    )
    columns = ("message", "network", "attack", "ε", "SSIM", "NMSE", f"one of {CANDIDATES}", "images")
    return Sheet("Images rebuilt from one message of k-space training", columns, tuple(lines), notes, names=3)


def similarity(true: np.ndarray, found: np.ndarray) -> float:
    """Return the structural similarity of two images of shape (row, column)."""
    return float(ssim(true[None], found[None])[0])


def _patients(first: int, message: Message) -> np.ndarray:
    """Return the images of a message's patients, shape (patient, image, row, column)."""
    count, (sequences, slices) = message.patients, message.places
    found = [_patient(number, message.slices, message.size) for number in range(first, first + count)]
    return np.stack(found)[:, sequences, slices]


@lru_cache(maxsize=2 * PUBLIC)
def _patient(number: int, slices: int, size: int) -> np.ndarray:
    return simulate_public_patient(PublicSettings(seed=SEED), number, slices, size).astype(np.float64)


def _mean(message: Message) -> np.ndarray:
    """Return the mean public image of the sequence and slice of each image, shape (image, row, column)."""
    public = np.stack([_patient(number, message.slices, message.size) for number in range(PUBLIC)])
    return np.asarray(public.mean(axis=0)[message.places])


def _matched(found: np.ndarray, true: np.ndarray, sequences: np.ndarray) -> np.ndarray:
    """Return the found images in the order of the true ones, with what whitening loses fitted."""
    matched = np.empty_like(true)
    for sequence in np.unique(sequences):
        own = np.flatnonzero(sequences == sequence)
        fitted = [[with_what_whitening_loses(found[a], true[b]) for b in own] for a in own]
        near = [[similarity(true[b], fitted[x][y]) for y, b in enumerate(own)] for x in range(len(own))]
        for x, y in zip(*linear_sum_assignment(near, maximize=True), strict=True):
            matched[own[y]] = fitted[x][y]
    return matched
