r"""Patients' gradients of a matrix product, kept as the factors whose product they are.

The gradient of a weight for one patient is a sum of outer products, one for each image: :math:`G_p = \sum_i a_i b_i^T`,
for a complex weight :math:`\sum_i a_i b_i^H`. With few images and a large weight the factors are much smaller than the
product, and all that clipping needs follows from them: the norm from two small Gram matrices,
:math:`\|G_p\|^2 = \sum_{ij} (a_i^H a_j)(b_j^H b_i)`, and the sum of clipped gradients from one product for all
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
from zetadp.nn.stacked import fold_gradient
from zetadp.nn.weight_gradients import split_by_patient

ROUNDING = 2.0**-24
"""Of one operation in float32."""
ROUNDING_OF_SQUARES = 2.0**-53
"""The same in float64, in which norms are taken."""
SMALLER = 4
"""How many times smaller than their product factors must be."""


@dataclass(frozen=True)
class Factored:
    r"""Gradients of one parameter, :math:`G_p = A_p^T B_p` or, of a complex one, :math:`A_p^T \bar B_p`.

    Attributes
    ----------
    left, right
        Real tensors A of shape (patient, image, row) and B of shape (patient, image, column); for a complex parameter
        their real parts stand before their imaginary ones, which makes twice as many rows and columns.
    is_complex
        Whether the parameter is complex.
    """

    left: Tensor
    right: Tensor
    is_complex: bool = False

    def norms(self) -> Tensor:
        """Return an upper bound on the norm of what `add_to` adds for each patient, float64 of shape (patient,).

        Images may cancel each other, so rounding is bounded by the sum of the lengths of their products, of which the
        bound adds about a millionth to the exact norm. To each number that is added, an image brings the rounding of
        its scale, of its product and of an addition to others of the same patient. A number of a complex gradient is
        the sum of two such numbers, which together are longer than the product by the square root of two at most.
        Additions to other patients are left aside, as for gradients that are written out.
        """
        images, rows, columns = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        of_left, of_right = (torch.linalg.vector_norm(t, dim=2, dtype=torch.float64) for t in (self.left, self.right))
        lengths = (of_left * of_right).sum(dim=1)
        squares = lengths.square() if images == 1 else self._squares()
        # The worst case; where images cancel, what is left of a square may be rounding alone.
        error = 4 * (rows + columns + images**2) * ROUNDING_OF_SQUARES * lengths.square()
        if self.is_complex:
            lengths = 2**0.5 * lengths
        bound: Tensor = (squares.clamp_min(0) + error).sqrt() + (images + 4) * ROUNDING * lengths
        return bound

    def _squares(self) -> Tensor:
        """Return the squared norm of each patient's gradient from Gram matrices."""
        left, right = self.left.double(), self.right.double()
        if self.is_complex:
            left, right = (torch.complex(*t.chunk(2, dim=2)) for t in (left, right))
        squares: Tensor = ((left @ left.mH) * (right @ right.mH).conj()).sum(dim=(1, 2))
        return squares.real if self.is_complex else squares

    def __getitem__(self, patients: slice) -> Factored:
        """Return the gradients of some patients."""
        return Factored(self.left[patients], self.right[patients], self.is_complex)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the sum of scaled gradients to a total.

        Parameters
        ----------
        total
            Of shape (row * column,), changed in place; for a complex parameter real and imaginary parts are neighbours.
        factors
            Factor of each patient, shape (patient,). Patients of factor zero are left out, whatever their gradients
            hold.
        """
        some = factors.nonzero().squeeze(1)
        left, right = (t if len(some) == len(factors) else t[some] for t in (self.left, self.right))
        left, right = (left * factors[some, None, None]).flatten(0, 1), right.flatten(0, 1)
        if self.is_complex:
            found = fold_gradient((left.T @ right).unsqueeze(0))
            total += torch.view_as_real(found).flatten()
        else:
            total.view(left.shape[1], -1).addmm_(left.T, right)


@dataclass(frozen=True)
class Use:
    """One use of a layer: its input and its output.

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
            if SMALLER * images * (rows + columns) <= rows * columns:
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

    A layer that was used several times has the images of all uses.
    """
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
    for use, gradient in zip(uses, gradients, strict=True):
        pairs[use.name].append(split_by_patient(gradient, use.x, patients))

    def joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        left, right = zip(*parts, strict=True)
        return parts[0] if len(parts) == 1 else (torch.cat(left, dim=1), torch.cat(right, dim=1))

    return {name: Factored(*joined(found), layers[name].weight.is_complex()) for name, found in pairs.items()}
