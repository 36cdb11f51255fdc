r"""Patients' gradients of a matrix product, kept as the factors whose product they are.

The gradient of a weight for one patient is a sum of outer products, one for each image (a complex weight has two real
ones): :math:`G_p = \sum_i a_i b_i^T`. With few images and a large weight the factors are much smaller than the product,
and all that clipping needs follows from them: the norm from two small Gram matrices,
:math:`\|G_p\|^2 = \sum_{ij} (a_i^T a_j)(b_i^T b_j)`, and the sum of clipped gradients from one product for all
patients. Norms from Gram matrices are those of ghost clipping (Li et al. 2022, arXiv:2110.05679, section 4). Here
several images make one gradient, and the norm is a bound on what is summed, rounding included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zetadp.nn.layers import Linear
from zetadp.nn.weight_gradients import product_factors

ROUNDING = 2.0**-24
"""Of one operation in float32."""
ROUNDING_OF_SQUARES = 2.0**-53
"""The same in float64, in which norms are taken."""
SMALLER = 4
"""How many times smaller than their product factors must be."""


@dataclass(frozen=True)
class Factored:
    """Gradients :math:`G_p = A_p^T B_p` of one parameter.

    Attributes
    ----------
    left, right
        Real tensors A of shape (patient, term, row) and B of shape (patient, term, column).
    """

    left: Tensor
    right: Tensor

    def norms(self) -> Tensor:
        """Return an upper bound on the norm of what `add_to` adds for each patient, float64 of shape (patient,).

        Terms may cancel each other, so rounding is bounded by the sum of their lengths, of which the bound adds about a
        millionth to the exact norm. To each number that is added, a term brings the rounding of its scale, of its
        product and of an addition to others of the same patient. Additions to other patients are left aside, as for
        gradients that are written out.
        """
        left, right = self.left.double(), self.right.double()
        squares = ((left @ left.mT) * (right @ right.mT)).sum(dim=(1, 2))
        lengths = (torch.linalg.vector_norm(left, dim=2) * torch.linalg.vector_norm(right, dim=2)).sum(dim=1)
        terms, rows, columns = left.shape[1], left.shape[2], right.shape[2]
        # The worst case; where terms cancel, what is left of a square may be rounding alone.
        error = 2 * (rows + columns + terms**2) * ROUNDING_OF_SQUARES * lengths.square()
        bound: Tensor = (squares.clamp_min(0) + error).sqrt() + (terms + 4) * ROUNDING * lengths
        return bound

    def __getitem__(self, patients: slice) -> Factored:
        """Return the gradients of some patients."""
        return Factored(self.left[patients], self.right[patients])

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the sum of scaled gradients to a total.

        Parameters
        ----------
        total
            Of shape (row * column,), changed in place.
        factors
            Factor of each patient, shape (patient,). Patients of factor zero are left out, whatever their gradients
            hold.
        """
        some = factors.nonzero().squeeze(1)
        left, right = (t if len(some) == len(factors) else t[some] for t in (self.left, self.right))
        left = (left * factors[some, None, None]).flatten(0, 1)
        total.view(left.shape[1], -1).addmm_(left.T, right.flatten(0, 1))


@dataclass(frozen=True)
class Use:
    """What a layer was given, and what it made of it.

    Attributes
    ----------
    name
        Name of the layer's weight.
    x, output
        Features of shape (image, feature). The gradient of the output, with the input, is all that a weight's gradient
        needs.
    """

    name: str
    x: Tensor
    output: Tensor


def layers_to_factor(model: nn.Module, names: tuple[str, ...], images: int) -> dict[str, Linear]:
    """Return the layers whose gradients are smaller as factors, by the name of their weight.

    Parameters
    ----------
    model
        The network.
    names
        Names of the parameters that are trained.
    images
        Images of one patient.
    """
    found = {}
    for place, module in model.named_modules():
        name = f"{place}.weight" if place else "weight"
        if type(module) is Linear and name in names:
            rows, columns = module.weight.shape
            terms, columns = (2 * images, 2 * columns) if module.weight.is_complex() else (images, columns)
            if SMALLER * terms * (rows + columns) <= rows * columns:
                found[name] = module
    return found


@contextmanager
def watched(layers: Mapping[str, Linear]) -> Iterator[list[Use]]:
    """Collect each use of some layers, by the name of their weight, while a network is evaluated in the block."""
    seen: list[Use] = []

    def note(name: str, x: Tensor, output: Tensor) -> None:
        # Where nothing before this layer is trained, its output would have no gradient.
        seen.append(Use(name, x.detach(), output if output.requires_grad else output.requires_grad_()))

    handles = [
        layer.register_forward_hook(lambda _, arguments, output, name=name: note(name, arguments[0], output))
        for name, layer in layers.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def factored(
    uses: Sequence[Use], gradients: Sequence[Tensor], layers: Mapping[str, Linear], patients: int
) -> dict[str, Factored]:
    """Return the gradients of layers' weights from the gradients of what each use of them gave.

    A layer that was used several times has the terms of all uses.
    """
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    for use, gradient in zip(uses, gradients, strict=True):
        is_complex = layers[use.name].weight.is_complex()
        pairs[use.name].append(product_factors(use.x, gradient, patients, is_complex=is_complex))
    return {
        name: Factored(*(torch.cat(parts, dim=1) for parts in zip(*found, strict=True)))
        for name, found in pairs.items()
    }
