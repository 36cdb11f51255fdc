"""Wrong gradients by one kernel alone, which a network shows only if it is large enough to need that kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mutants.checks_of_contributions import (
    check_a_contribution_does_not_depend_on_others,
    check_a_contribution_is_the_slope_of_the_patients_loss,
    check_a_patient_that_is_not_finite_adds_zero,
    check_no_patient_adds_more_than_the_clip,
)
from mutants.installing import mutant, replacement

if TYPE_CHECKING:
    from torch import Tensor

    from zetadp.privacy.factored import Factored

WEIGHTS = "zetadp.nn.weight_gradients"
THREE, BY_PATIENT, PRODUCT = (
    f"{WEIGHTS}:{name}" for name in ("by_patient_in_three", "by_patient", "product_gradients")
)


@mutant("zetadp.privacy.factored:Factored.norms", check_no_patient_adds_more_than_the_clip)
def norm_of_factors_without_cross_terms(original: Any, self: Factored) -> Tensor:
    squares = self.left.double().square().sum(dim=2) * self.right.double().square().sum(dim=2)
    return squares.sum(dim=1).sqrt()


@mutant("zetadp.privacy.factored:Factored.add_to", check_a_contribution_is_the_slope_of_the_patients_loss)
def factors_scaled_on_both_sides(original: Any, self: Any, total: Any, factors: Any) -> Any:
    return original(self, total, factors.square())


@mutant("zetadp.privacy.factored:Factored.add_to", check_a_patient_that_is_not_finite_adds_zero)
def factors_of_everybody_are_multiplied(original: Any, self: Factored, total: Tensor, factors: Tensor) -> None:
    # The original leaves out who has factor zero; here everybody has another.
    some = type(self)(self.left * factors[:, None, None], self.right, self.is_complex)
    original(some, total, torch.ones_like(factors))


@mutant("zetadp.privacy.contributions:_of_product", check_a_contribution_is_the_slope_of_the_patients_loss)
def factored_gradient_without_conjugate(original: Any, *arguments: Any) -> Any:
    def conjugate(factors: Factored) -> Factored:
        real, imaginary = factors.right.chunk(2, dim=2)
        return type(factors)(factors.left, torch.cat((real, -imaginary), dim=2), factors.is_complex)

    found = original(*arguments)
    return {name: conjugate(factors) if factors.is_complex else factors for name, factors in found.items()}


@mutant(THREE, check_a_contribution_is_the_slope_of_the_patients_loss)
def three_products_without_conjugate(original: Any, x: Tensor, gradient: Tensor, patients: int, geometry: Any) -> Any:
    real, imaginary = x.chunk(2, dim=1)
    return original(torch.cat((real, -imaginary), dim=1), gradient, patients, geometry)


@mutant(THREE, check_a_contribution_does_not_depend_on_others)
def patients_of_a_call_share_a_gradient(
    original: Any, x: Tensor, gradient: Tensor, patients: int, geometry: Any
) -> Any:
    found = original(x, gradient, patients, geometry)
    for call in torch.split(found, torch.get_num_threads()):
        call.copy_(call.mean(dim=0))
    return found


def _of_the_first_image(original: Any, *, complex_ones: bool) -> Any:
    """Return a kernel that looks at one image of each patient where weights are complex, or where they are real."""

    def kernel(x: Tensor, gradient: Tensor, patients: int, *geometry: Any, is_complex: bool) -> Any:
        if is_complex == complex_ones:
            images = len(x) // patients
            x, gradient = x[::images], gradient[::images]
        return original(x, gradient, patients, *geometry, is_complex=is_complex)

    return kernel


@replacement(BY_PATIENT, check_a_contribution_is_the_slope_of_the_patients_loss)
def real_gradient_of_the_first_image(original: Any) -> Any:
    return _of_the_first_image(original, complex_ones=False)


@replacement(BY_PATIENT, check_a_contribution_is_the_slope_of_the_patients_loss)
def complex_gradient_of_the_first_image(original: Any) -> Any:
    return _of_the_first_image(original, complex_ones=True)


@replacement(PRODUCT, check_a_contribution_is_the_slope_of_the_patients_loss)
def real_product_of_the_first_image(original: Any) -> Any:
    return _of_the_first_image(original, complex_ones=False)


@replacement(PRODUCT, check_a_contribution_is_the_slope_of_the_patients_loss)
def complex_product_of_the_first_image(original: Any) -> Any:
    return _of_the_first_image(original, complex_ones=True)


@mutant("zetadp.privacy.contributions:_mapped_gradients", check_a_contribution_is_the_slope_of_the_patients_loss)
def mapped_gradients_of_images_added_up(
    original: Any, of: Any, images: Tensor, labels: Tensor, weights: Tensor | None, *rest: Any
) -> Any:
    return original(of, images, labels, torch.ones(labels.shape) if weights is None else weights, *rest)
