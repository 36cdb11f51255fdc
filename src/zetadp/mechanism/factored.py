r"""Patients' gradients of a matrix product, stored as two factors whose product is the gradient.

The gradient of a weight for one patient is a sum of outer products, one for each image: :math:`G_p = \sum_i a_i b_i^T`,
for a complex weight :math:`\sum_i a_i b_i^H`. With few images and a large weight the factors are much smaller than the
product, and clipping needs nothing else. The norm follows from two small Gram matrices,
:math:`\|G_p\|^2 = \sum_{ij} (a_i^H a_j)(b_j^H b_i)`, as in ghost clipping (Li et al. 2022, arXiv:2110.05679, section
4). The sum of clipped gradients is one product for all patients. Here several images make one gradient, and the norm
is a bound on the contribution to the sum, rounding included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

ROUNDING = 2.0**-24
"""Relative error of one operation in float32."""
ROUNDING_OF_SQUARES = 2.0**-53
"""Relative error of one operation in float64, in which norms are computed."""
SMALLER = 4
"""Factors are used only if they are at least this many times smaller than their product."""


def fold_gradient(block: Tensor) -> Tensor:
    """Fold gradients of real block weights ``[[A, -B], [B, A]]`` into gradients of the complex weights ``A + iB``.

    Parameters
    ----------
    block
        Real tensor of shape (patient, 2 * output, 2 * input, ...).

    Returns
    -------
    Complex tensor of shape (patient, output, input, ...) in PyTorch's convention ``dL/dA + i dL/dB``.
    """
    upper, lower = block.chunk(2, dim=1)
    w11, w12 = upper.chunk(2, dim=2)
    w21, w22 = lower.chunk(2, dim=2)
    return torch.complex(w11 + w22, w21 - w12)


def split_by_patient(left: Tensor, right: Tensor, patients: int) -> tuple[Tensor, Tensor]:
    """Return two tensors of shape (image, feature) as (patient, image, feature)."""
    return left.reshape(patients, -1, left.shape[1]), right.reshape(patients, -1, right.shape[1])


@dataclass(frozen=True)
class Factored:
    r"""Gradients of one parameter: :math:`G_p = A_p^T B_p`, or :math:`A_p^T \bar B_p` if it is complex.

    Attributes
    ----------
    left, right
        Real tensors A of shape (patient, image, row) and B of shape (patient, image, column). For a complex parameter
        there are twice as many rows and columns: first the real parts, then the imaginary parts.
    is_complex
        Whether the parameter is complex.
    """

    left: Tensor
    right: Tensor
    is_complex: bool = False

    def norms(self) -> Tensor:
        """Return an upper bound on the norm of what `add_to` adds for each patient, float64 of shape (patient,).

        Images may cancel each other, so rounding errors are bounded by the sum of the norms of their products. About a
        millionth of this sum is added to the exact norm. For each image, there is the rounding of its scale, of its
        product and of one addition to other images of the patient. A number of a complex gradient is the sum of two
        such numbers, which together are at most the square root of two longer. Rounding of sums over patients is not
        included, nor is it for gradients that are written out.
        """
        images, rows, columns = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        left, right = self.left.double(), self.right.double()
        of_left, of_right = (torch.linalg.vector_norm(t, dim=2) for t in (left, right))
        lengths = (of_left * of_right).sum(dim=1)
        squares = lengths.square() if images == 1 else self._squares(left, right)
        # This is the worst case. If images cancel, the rest of a square may be only rounding error.
        error = 4 * (rows + columns + images**2) * ROUNDING_OF_SQUARES * lengths.square()
        if self.is_complex:
            lengths = 2**0.5 * lengths
        bound: Tensor = (squares.clamp_min(0) + error).sqrt() + (images + 4) * ROUNDING * lengths
        return bound

    def _squares(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the squared norm of each patient's gradient from Gram matrices of both factors, given in float64."""
        if self.is_complex:
            left, right = (torch.complex(*t.chunk(2, dim=2)) for t in (left, right))
        squares: Tensor = ((left @ left.mH) * (right @ right.mH).conj()).sum(dim=(1, 2))
        return squares.real if self.is_complex else squares

    def __getitem__(self, patients: slice) -> Factored:
        """Return the gradients of some patients."""
        return Factored(self.left[patients], self.right[patients], self.is_complex)

    def cleaned(self, finite: Tensor) -> Factored:
        """Return the same gradients, but zero where ``finite``, shape (patient,), is false."""
        left, right = (torch.where(finite[:, None, None], t, 0.0) for t in (self.left, self.right))
        return Factored(left, right, self.is_complex)

    def plus(self, other: Factored) -> Factored:
        """Return the sum of two gradients of the same patients."""
        left, right = (torch.cat(pair, dim=1) for pair in ((self.left, other.left), (self.right, other.right)))
        return Factored(left, right, self.is_complex)

    def smallest(self, *, factors: bool) -> Tensor | Factored:
        """Return the factors if they are wanted and small, otherwise their product, shape (patient, number)."""
        (images, rows), columns = self.left.shape[1:], self.right.shape[2]
        parts = 2 if self.is_complex else 1
        if factors and are_smaller(images, rows // parts, columns // parts):
            return self
        product = self.left.mT @ self.right
        return (torch.view_as_real(fold_gradient(product)) if self.is_complex else product).flatten(1)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the sum of scaled gradients to a total.

        Parameters
        ----------
        total
            Shape (row * column,), changed in place. For a complex parameter, real and imaginary parts alternate.
        factors
            Factor of each patient, shape (patient,). Gradients that are not finite must be `cleaned` first: zero times
            infinity is not zero.
        """
        left, right = (self.left * factors[:, None, None]).flatten(0, 1), self.right.flatten(0, 1)
        if self.is_complex:
            product = fold_gradient((left.T @ right).unsqueeze(0))
            total += torch.view_as_real(product).flatten()
        else:
            total.view(left.shape[1], -1).addmm_(left.T, right)


def are_smaller(images: int, rows: int, columns: int) -> bool:
    """Return whether factors of a matrix are `SMALLER` than their product, for a patient with this number of images."""
    return SMALLER * images * (rows + columns) <= rows * columns


@dataclass(frozen=True)
class Call:
    """One call of a layer.

    Attributes
    ----------
    name
        Name of the layer.
    x, output
        Its input and its output, of items along the first axis. The gradient of the output, with the input, is all that
        a weight's gradient needs.
    """

    name: str
    x: Tensor
    output: Tensor | GradientEdge


@contextmanager
def calls_of(modules: Mapping[str, nn.Module]) -> Iterator[list[Call]]:
    """Collect each call of some modules, by their names, while a network is evaluated in the block."""
    seen: list[Call] = []

    def note(name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> Tensor:  # noqa: ANN401  (whatever a layer returns)
        if keywords or not (len(arguments) == 1 and isinstance(arguments[0], Tensor) and isinstance(output, Tensor)):
            raise NotImplementedError(f"Expected a layer of one tensor that returns one tensor as {name!r}.")
        x = arguments[0]
        if not output.requires_grad:
            # Nothing before this layer is trained. A copy of a leaf may be changed in place, by an activation.
            leaf = output.detach().requires_grad_()
            seen.append(Call(name, x.detach(), leaf))
            return leaf.clone()
        # The edge stands for the output as it is now, even if it is changed in place later.
        seen.append(Call(name, x.detach(), get_gradient_edge(output)))
        return output

    handles = [
        module.register_forward_hook(lambda _, *arguments, name=name: note(name, *arguments), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
