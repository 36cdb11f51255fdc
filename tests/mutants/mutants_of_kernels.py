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
from mutants.installing import mutant

if TYPE_CHECKING:
    from torch import Tensor

    from zetadp.privacy.factored import Factored

THREE = "zetadp.nn.weight_gradients:by_patient_in_three"


@mutant("zetadp.privacy.factored:Factored.norms", check_no_patient_adds_more_than_the_clip)
def norm_of_factors_without_cross_terms(original: Any) -> Any:
    def norms(self: Factored) -> Tensor:
        squares = self.left.double().square().sum(dim=2) * self.right.double().square().sum(dim=2)
        return squares.sum(dim=1).sqrt()

    return norms


@mutant("zetadp.privacy.factored:Factored.add_to", check_a_contribution_is_the_slope_of_the_patients_loss)
def factors_scaled_on_both_sides(original: Any) -> Any:
    return lambda self, total, factors: original(self, total, factors.square())


@mutant("zetadp.privacy.factored:Factored.add_to", check_a_patient_that_is_not_finite_adds_zero)
def factors_of_everybody_are_multiplied(original: Any) -> Any:
    def add_to(self: Factored, total: Tensor, factors: Tensor) -> None:
        # The original leaves out who has factor zero; here everybody has another.
        some = type(self)(self.left * factors[:, None, None], self.right, self.is_complex)
        original(some, total, torch.ones_like(factors))

    return add_to


@mutant("zetadp.privacy.contributions:_of_product", check_a_contribution_is_the_slope_of_the_patients_loss)
def factored_gradient_without_conjugate(original: Any) -> Any:
    def of_product(layer: Any, x: Tensor, gradient: Tensor, units: int) -> Any:
        found = original(layer, x, gradient, units)
        for factors in found.values():
            if factors.is_complex:
                factors.right.chunk(2, dim=2)[1].neg_()
        return found

    return of_product


@mutant(THREE, check_a_contribution_is_the_slope_of_the_patients_loss)
def three_products_without_conjugate(original: Any) -> Any:
    def by_patient_in_three(x: Tensor, gradient: Tensor, patients: int, geometry: Any) -> Any:
        real, imaginary = x.chunk(2, dim=1)
        return original(torch.cat((real, -imaginary), dim=1), gradient, patients, geometry)

    return by_patient_in_three


@mutant(THREE, check_a_contribution_does_not_depend_on_others)
def patients_of_a_call_share_a_gradient(original: Any) -> Any:
    def by_patient_in_three(x: Tensor, gradient: Tensor, patients: int, geometry: Any) -> Any:
        found = original(x, gradient, patients, geometry)
        for call in torch.split(found, torch.get_num_threads()):
            call.copy_(call.mean(dim=0))
        return found

    return by_patient_in_three


@mutant("zetadp.nn.weight_gradients:by_patient", check_a_contribution_is_the_slope_of_the_patients_loss)
def real_gradient_of_the_first_image(original: Any) -> Any:
    def by_patient(x: Tensor, gradient: Tensor, patients: int, *geometry: Any, is_complex: bool, **more: Any) -> Any:
        if not is_complex:
            images = len(x) // patients
            x, gradient = x[::images], gradient[::images]
        return original(x, gradient, patients, *geometry, is_complex=is_complex, **more)

    return by_patient


@mutant("zetadp.privacy.contributions:_mapped_gradients", check_a_contribution_is_the_slope_of_the_patients_loss)
def mapped_gradients_of_images_added_up(original: Any) -> Any:
    def mapped(of: Any, images: Tensor, labels: Tensor, weights: Tensor | None, *rest: Any) -> Any:
        return original(of, images, labels, torch.ones(labels.shape) if weights is None else weights, *rest)

    return mapped
