"""Frozen convolutions with low-rank updates: few trained weights that still reach every filter.

A convolution's weight, as a matrix of outputs by inputs times kernel, becomes ``W = W0 + U V`` of two factors with
``rank`` columns and rows (Hu et al., arXiv:2106.09685). W0 is frozen and public; V is drawn at random from the run's
seed, which is public too; U starts at zero, so that training begins at W0 to the bit.

Where U alone is trained, scores are as linear in what is trained as they are in W, and of the two factors it has the
fewer weights: ``rank`` for each output, against ``rank * kernel**2`` for each input.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zetadp.nn.layers import Conv2d


class LowRankConv2d(Conv2d):
    """A frozen convolution, complex (on stacked tensors) or real, plus a trained update of low rank.

    The frozen weight has the name that a plain convolution gives it, so that both read each other's.

    Parameters
    ----------
    inputs, outputs, kernel, stride, dtype
        As of `Conv2d`.
    rank
        Filters of the inner factor V, and so the largest rank of the update; those of a complex layer are complex.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 3, *, rank: int, stride: int = 1, dtype: torch.dtype
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, dtype=dtype)
        self.inner = Conv2d(inputs, rank, kernel, stride=stride, dtype=dtype)
        self.outer = Conv2d(rank, outputs, 1, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images of shape (image, channel, row, column), complex channels stacked."""
        update: Tensor = self.outer(self.inner(x))
        return super().forward(x) + update


def updates(model: nn.Module) -> dict[str, Tensor]:
    """Return the factors of all low-rank updates of a network by name: what it has besides the network it updates."""
    return {
        f"{name}.{factor}": value
        for name, module in model.named_modules()
        if isinstance(module, LowRankConv2d)
        for factor, value in module.state_dict().items()
        if factor != "weight"
    }
