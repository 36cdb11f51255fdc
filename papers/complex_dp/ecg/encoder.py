"""The public encoder: a network that is trained on simulated beats to detect LBBB and to describe the beat's waves.

Its hidden layer gives the features for private heads. No patient's data are used to train it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from papers.complex_dp.ecg.recordings import BEAT, LEADS, usual_beat
from papers.complex_dp.ecg.simulated import PUBLIC, T_WAVES, simulated_recordings
from papers.complex_dp.encoder import PublicEncoder, learn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from papers.complex_dp.ecg.simulated import SimulatedPatient

BATCH = 64
RATE = 3e-3
SMOOTHING = 0.1
LONGEST_SHIFT = 3


class BeatEncoder(PublicEncoder):
    """An encoder of beats of shape (beat, lead, sample): the hidden layer of a network.

    The network tells the score of LBBB, the length of the QRS complex, and the directions of QRS and T wave.
    """

    of = "heart beats"
    # Half of the patients have LBBB. Each pass over them alters the beats at random.
    recipe: ClassVar = {"seed": 0, "patients": 2000, "epochs": 12, "components": 8}
    component_keys = ("components",)
    channels = len(LEADS)
    axes = 1
    widths = (24, 32, 48)
    kernel = 5
    flat = 48 * (BEAT // 8)
    hidden_units = 64
    outputs = 2 + 6

    def learn_simulated(self, random: np.random.Generator) -> Tensor:
        """Train the network on simulated patients with one recording each, and return their beats."""
        patients, seed, epochs = (self.recipe[key] for key in ("patients", "seed", "epochs"))
        # Simulate at the sampling rate of beats: resampling would take most of the time.
        recordings = list(simulated_recordings(patients, seed=seed, place=PUBLIC, share=0.5, several=0, rate=100))
        beats = torch.from_numpy(np.stack([usual_beat(recording) for recording, _ in recordings]))
        targets = torch.from_numpy(np.stack([_waves_of(patient) for _, patient in recordings]))
        steps = len(beats) // BATCH

        def losses() -> Iterator[Tensor]:
            for _ in range(epochs):
                order = torch.from_numpy(random.permutation(len(beats))[: steps * BATCH])
                for batch in order.split(BATCH):  # type: ignore[no-untyped-call]
                    outputs, batch_targets = self(_altered(beats[batch], random)), targets[batch]
                    smoothed = batch_targets[:, 0] * (1 - SMOOTHING) + SMOOTHING / 2
                    loss = functional.binary_cross_entropy_with_logits(outputs[:, 0], smoothed)
                    yield loss + functional.mse_loss(outputs[:, 1:], batch_targets[:, 1:])

        learn(self, RATE, epochs * steps, losses())
        return beats

    @torch.no_grad()
    def scores(self, beats: np.ndarray) -> np.ndarray:
        """Return the public network's own score of LBBB, without any private training, shape (beat,)."""
        return np.asarray(self(torch.from_numpy(beats))[:, 0].numpy())


def _waves_of(patient: SimulatedPatient) -> np.ndarray:
    """Return label, scaled length of the QRS complex (0 at 110 ms, 1 at 160 ms), and directions of QRS and T wave."""
    directions = []
    for waves in (patient.qrs, patient.others[:T_WAVES]):
        # Directions as the torso projects them onto leads I, II and V2.
        seen = patient.torso[[0, 1, 3]] @ (waves[:, 1] @ waves[:, 2:])
        directions.append(seen / np.linalg.norm(seen))
    length = (patient.qrs_seconds - 0.11) / 0.05
    return np.concatenate(([patient.label, length], *directions)).astype(np.float32)


def _altered(beats: Tensor, random: np.random.Generator) -> Tensor:
    """Alter beats at random: shift them in time, scale their leads, set some leads to zero, and add noise."""
    moved = torch.roll(beats, int(random.integers(-LONGEST_SHIFT, LONGEST_SHIFT + 1)), 2)
    scale = np.exp(random.normal(0, 0.15, (len(beats), len(LEADS), 1))) * (
        random.random((len(beats), len(LEADS), 1)) > 0.1
    )
    noise = 0.1 * random.standard_normal(moved.shape)
    return moved * torch.from_numpy(scale).float() + torch.from_numpy(noise).float()
