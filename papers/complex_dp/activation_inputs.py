"""Inputs of the comparison of activations: complex features of spoken words, and k-space of the phantom.

An input depends on its own clip or slice and on public simulations alone. Learning rates are chosen on public items.
The other items give the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from papers.complex_dp.scattering import centred
from papers.complex_dp.speech_commands.clips import capped, read_clips
from papers.complex_dp.speech_commands.encoder import log_mel
from papers.complex_dp.speech_commands.simulated import simulated_words
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import written_whole
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.phantom.cohort import simulate_patient
from zetadp.phantom.settings import Simulated

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

MOST_CLIPS = 40
"""Clips that are taken of a speaker."""
LOWEST = 6
"""Modulations that are kept along each axis of a clip's mel spectrogram, the constant one included."""
WORDS_SIMULATED = 2000
HARDER: dict[str, Any] = {"formants": 0.2, "durations": 0.5, "noise": (-5.0, 25.0)}
"""Simulated words vary more than those that the public network learnt from."""
PATIENTS, SEED, PUBLIC_SEED = 300, 31, 32
SIDE = 12
"""Side of the centre of k-space that a network sees."""
TESTED = 0.2, 0.3
"""Shares of speakers and of patients that are used for testing only."""


@dataclass(frozen=True)
class Items:
    """Inputs of a network, and the person behind each.

    Attributes
    ----------
    inputs
        complex64, shape (item, 1, row, column), with mean squared modulus one in each item.
    labels
        Class of each item.
    people
        Speaker or patient of each item. Nobody is in both training and test.
    tested
        Share of people that are used for testing only.
    """

    inputs: Tensor
    labels: np.ndarray
    people: np.ndarray
    tested: float

    def split(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of training and test items. A seed gives every activation the same split."""
        people = stream(seed, Purpose.PARTITION).permutation(np.unique(self.people))
        test = np.isin(self.people, people[: round(self.tested * len(people))])
        return np.flatnonzero(~test), np.flatnonzero(test)


def spoken_words(folder: Path) -> tuple[Items, Items]:
    """Return public simulated words, and the clips of a folder.

    A clip is moved so that the centre of its energy lies in the middle. The two-dimensional Fourier transform of its
    mel spectrogram is complex: slow modulations over time and frequency, whose phases say where energy lies. Each of
    the 66 lowest is divided by its root mean square on simulated words.
    """
    waves, labels = _simulated_words()
    public = _modulations(waves)
    scale = public.abs().square().mean(dim=0).sqrt()
    clips = capped(read_clips(folder), MOST_CLIPS)
    modulations = _modulations(clips.arrays["values"])
    return (
        Items(_scaled(public / scale)[:, None, None], labels, np.arange(len(labels)), TESTED[0]),
        Items(
            _scaled(modulations / scale)[:, None, None],
            clips.arrays["labels"],
            clips.names["speaker"].to_numpy(),
            TESTED[0],
        ),
    )


def brain_slices(folder: Path) -> tuple[Items, Items]:
    """Return slices of a public phantom, and of another: the centre of k-space with the root of each modulus.

    The simulation takes minutes, so its result is stored in a folder.
    """
    public, compared = (_simulated(seed, folder / f"phantom-{PATIENTS}-{seed}.npy") for seed in (PUBLIC_SEED, SEED))
    return public, compared


def _modulations(waves: np.ndarray) -> Tensor:
    parts = []
    for part in np.array_split(waves, 1 + len(waves) // 200):
        moved = centred(torch.from_numpy(part.astype(np.float32)))
        whole = torch.fft.fft2(log_mel(moved.numpy().astype(np.int16)))
        parts.append(torch.cat((whole[:, :LOWEST, :LOWEST], whole[:, 1 - LOWEST :, :LOWEST]), dim=1).flatten(1))
    return torch.cat(parts)


def _simulated_words() -> tuple[np.ndarray, np.ndarray]:
    """Return public clips and their labels, simulated in pieces to limit memory."""
    pieces = [simulated_words(500, 1, 0, number, **HARDER) for number in range(WORDS_SIMULATED // 500)]
    waves, labels = zip(*pieces, strict=True)
    return np.concatenate(waves), np.concatenate(labels)


def _patient_images(settings: Simulated, number: int) -> np.ndarray:
    """Return the images (sequence, slice, row, column) of one patient."""
    volume = simulate_patient(settings, number)
    return resize_area(volume[:, :, centre_slices(volume.shape[2], 20)].transpose(3, 2, 0, 1), 32)


def _simulated(seed: int, path: Path) -> Items:
    """Return the slices of a phantom, shape (patient, sequence, slice, row, column) in the file."""
    if not path.exists():
        settings = Simulated(seed=seed, grid=[32, 32, 24])
        images = np.stack([_patient_images(settings, number) for number in range(1, PATIENTS + 1)])
        with written_whole(path) as temporary, temporary.open("wb") as file:
            np.save(file, images.astype(np.float32))
    whole = to_kspace(np.load(path))
    people, classes, slices, size, _ = whole.shape
    centre = slice((size - SIDE) // 2, (size + SIDE) // 2)
    kspace = torch.from_numpy(whiten(whole[..., centre, centre])).flatten(0, 2)
    roots = torch.polar(kspace.abs().sqrt(), kspace.angle()).flatten(1)
    labels = np.tile(np.repeat(np.arange(classes), slices), people)
    owners = np.repeat(np.arange(people), classes * slices)
    return Items(_scaled(roots).view(-1, 1, SIDE, SIDE), labels, owners, TESTED[1])


def _scaled(values: Tensor) -> Tensor:
    """Return rows with mean squared modulus one."""
    return values / values.abs().square().mean(dim=1, keepdim=True).sqrt().clamp_min(1e-6)
