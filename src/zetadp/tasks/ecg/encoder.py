"""The public encoder: a network that is trained on simulated beats to detect LBBB and to describe the beat's waves.

Its hidden layer gives the features for private heads. No patient's data are used to train it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.backbone.axes import fit_axes
from zetadp.backbone.encoder import Learning, PublicEncoder, new
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError, positive
from zetadp.tasks.ecg.recordings import LEADS
from zetadp.tasks.ecg.signals import BEAT, usual_beat
from zetadp.tasks.ecg.simulated import PUBLIC, T_WAVES, simulated_recordings

if TYPE_CHECKING:
    from zetadp.backbone.axes import Extract
    from zetadp.tasks.ecg.simulated import SimulatedPatient

logger = logging.getLogger(__name__)

WIDTHS = (24, 32, 48)
HIDDEN = 64
BATCH = 64
RATE = 3e-3
SMOOTHING = 0.1
LONGEST_SHIFT = 3


@dataclass(frozen=True)
class BeatEncoderSettings:
    """Settings of an encoder.

    Attributes
    ----------
    patients
        Number of simulated patients that train the network. Half of them have LBBB.
    epochs
        Number of passes over these patients. Each pass alters the beats at random.
    components
        Number of principal components of the hidden layer in the features.
    seed
        Seed of patients, weights and alterations.

    Raises
    ------
    UserError
        If there are fewer patients than a batch, or more components than the hidden layer has.
    """

    patients: int = 2000
    epochs: int = 12
    components: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(patients=self.patients, epochs=self.epochs, components=self.components)
        if self.patients < BATCH or self.components > HIDDEN:
            raise UserError(
                f"Expected task.settings.encoder.patients to be at least {BATCH} and components at most {HIDDEN}, "
                f"found {self.patients} and {self.components}."
            )


class BeatNetwork(nn.Module):
    """Three convolutions, each with normalisation within the beat and pooling, then a hidden layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in pairwise((len(LEADS), *WIDTHS)):
            layers += [nn.Conv1d(before, width, 5, padding=2), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool1d(2)]
        self.blocks = nn.Sequential(*layers)
        self.hidden = nn.Linear(WIDTHS[-1] * (BEAT // 8), HIDDEN)
        self.head = nn.Linear(HIDDEN, 2 + 6)

    def features(self, beats: Tensor) -> Tensor:
        """Return the hidden layer, shape (beat, `HIDDEN`), for beats of shape (beat, lead, sample)."""
        return functional.relu(self.hidden(self.blocks(beats).flatten(1)))

    def forward(self, beats: Tensor) -> Tensor:
        """Return the score of LBBB, the length of QRS, and the directions of QRS and T wave, shape (beat, 8)."""
        found: Tensor = self.head(self.features(beats))
        return found


class BeatEncoder(PublicEncoder[BeatEncoderSettings, BeatNetwork]):
    """An encoder of beats: the hidden layer of the network."""

    of = "heart beats"
    kinds = (BeatEncoderSettings, BeatNetwork)

    @staticmethod
    def maps(network: BeatNetwork) -> tuple[Extract, ...]:
        """Return the function that computes the network's hidden layer."""
        return (network.features,)

    @classmethod
    def fit(cls, settings: BeatEncoderSettings) -> BeatEncoder:
        """Train the network and find the principal axes, on simulated patients alone."""
        beats, targets = public_beats(settings.patients, settings.seed)
        network = _fit_network(beats, targets, settings)
        return cls(settings, network, (fit_axes(network.features, beats, settings.components),))

    def features(self, beats: np.ndarray) -> np.ndarray:
        """Return features of norm one, float32, shape (beat, component), for beats of shape (beat, lead, sample).

        The features of a beat depend on this beat alone.
        """
        return np.asarray(self.joined(torch.from_numpy(beats), self.settings.components).numpy())

    @torch.no_grad()
    def scores(self, beats: np.ndarray) -> np.ndarray:
        """Return the public network's own score of LBBB, without any private training, shape (beat,)."""
        return np.asarray(self.network(torch.from_numpy(beats))[:, 0].numpy())


def public_beats(patients: int, seed: int) -> tuple[Tensor, Tensor]:
    """Simulate beats of public patients, and return them with the targets of `BeatNetwork`.

    Parameters
    ----------
    patients
        Number of patients. Half of them have LBBB.
    seed
        Seed of the patients.

    Returns
    -------
    Beats of shape (beat, lead, sample) and targets of shape (beat, 8), both float32, one beat per patient.
    """
    # Simulate at the sampling rate of beats: resampling would take most of the time.
    made = list(simulated_recordings(patients, seed=seed, place=PUBLIC, share=0.5, several=0, rate=100))
    beats = torch.from_numpy(np.stack([usual_beat(recording) for recording, _ in made]))
    targets = [_waves_of(patient) for _, patient in made]
    return beats, torch.from_numpy(np.stack(targets))


def _waves_of(patient: SimulatedPatient) -> np.ndarray:
    """Return label, scaled length of the QRS complex (0 at 110 ms, 1 at 160 ms), and directions of QRS and T wave."""
    directions = []
    for waves in (patient.qrs, patient.others[:T_WAVES]):
        # Directions as the torso projects them onto leads I, II and V2.
        seen = patient.torso[[0, 1, 3]] @ (waves[:, 1] @ waves[:, 2:])
        directions.append(seen / np.linalg.norm(seen))
    length = (patient.qrs_seconds - 0.11) / 0.05
    return np.concatenate(([patient.label, length], *directions)).astype(np.float32)


def _fit_network(beats: Tensor, targets: Tensor, settings: BeatEncoderSettings) -> BeatNetwork:
    random = stream(settings.seed, Purpose.WEIGHTS)
    network = new(BeatNetwork, random)
    steps = len(beats) // BATCH
    learning = Learning(network, RATE, settings.epochs * steps)
    for number in range(settings.epochs):
        order = torch.from_numpy(random.permutation(len(beats))[: steps * BATCH])
        for batch in order.split(BATCH):  # type: ignore[no-untyped-call]
            found, wanted = network(_altered(beats[batch], random)), targets[batch]
            loss = functional.binary_cross_entropy_with_logits(
                found[:, 0], wanted[:, 0] * (1 - SMOOTHING) + SMOOTHING / 2
            )
            loss = loss + functional.mse_loss(found[:, 1:], wanted[:, 1:])
            learning.step(loss)
        logger.info("epoch %d of %d, loss %.3f", number + 1, settings.epochs, loss.item())
    return network.eval().requires_grad_(requires_grad=False)


def _altered(beats: Tensor, random: np.random.Generator) -> Tensor:
    """Alter beats at random: shift them in time, scale their leads, set some leads to zero, and add noise."""
    moved = torch.roll(beats, int(random.integers(-LONGEST_SHIFT, LONGEST_SHIFT + 1)), 2)
    scale = np.exp(random.normal(0, 0.15, (len(beats), len(LEADS), 1))) * (
        random.random((len(beats), len(LEADS), 1)) > 0.1
    )
    noise = 0.1 * random.standard_normal(moved.shape)
    return moved * torch.from_numpy(scale).float() + torch.from_numpy(noise).float()
