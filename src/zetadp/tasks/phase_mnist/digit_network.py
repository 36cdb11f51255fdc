"""A small network, trained to classify simulated digits. Its hidden layer gives public features of real digits."""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.backbone.encoder import Learning, new
from zetadp.base.randomness import Purpose, stream
from zetadp.tasks.phase_mnist.simulated import simulated_digits

logger = logging.getLogger(__name__)

WIDTHS = (24, 48, 96)
HIDDEN = 128
BATCH = 64
RATE = 3e-3
SMOOTHING = 0.05
CHUNK = 25 * BATCH
"""Number of digits that are simulated together."""


class DigitNetwork(nn.Module):
    """Three convolutions, each with normalisation within the image and pooling, then a hidden layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, width in zip((1, *WIDTHS), WIDTHS, strict=False):
            norm = nn.GroupNorm(4, width)
            layers += [nn.Conv2d(before, width, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2)]
        self.blocks = nn.Sequential(*layers)
        self.hidden = nn.Linear(WIDTHS[-1] * 9, HIDDEN)
        self.head = nn.Linear(HIDDEN, 10)

    def features(self, images: Tensor) -> Tensor:
        """Return the hidden layer, shape (image, `HIDDEN`), for images of shape (image, 28, 28) in [0, 1]."""
        return functional.relu(self.hidden(self.blocks(images.unsqueeze(1)).flatten(1)))

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class)."""
        scores: Tensor = self.head(self.features(images))
        return scores


def fit_digit_network(digits: int, seed: int) -> DigitNetwork:
    """Train the network on simulated digits, in a single pass.

    Parameters
    ----------
    digits
        Number of digits, a multiple of `CHUNK`.
    seed
        Seed of digits and weights.

    Returns
    -------
    The network in evaluation mode, without gradients.
    """
    random = stream(seed, Purpose.WEIGHTS)
    network = new(DigitNetwork, random)
    learning = Learning(network, RATE, digits // BATCH)
    for number in range(digits // CHUNK):
        images, labels = simulated_digits(CHUNK, seed, number)
        for part, wanted in zip(images.split(BATCH), labels.split(BATCH), strict=True):  # type: ignore[no-untyped-call]
            moved = torch.roll(part, tuple(random.integers(-1, 2, 2).tolist()), (1, 2))
            grey = moved * torch.from_numpy(random.uniform(0.7, 1, (BATCH, 1, 1))).float()
            loss = functional.cross_entropy(network(grey), wanted, label_smoothing=SMOOTHING)
            learning.step(loss)
        logger.info("learnt from %d of %d simulated digits", (number + 1) * CHUNK, digits)
    return network.eval().requires_grad_(requires_grad=False)
