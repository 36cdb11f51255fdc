"""Which kernels make patients' gradients, and which of them a check calls."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from mutants.installing import Mutant, installed

if TYPE_CHECKING:
    from collections.abc import Iterator

WEIGHTS, FACTORED = "zetadp.nn.weight_gradients", "zetadp.privacy.factored:Factored"
ON_A_CPU = {
    f"{WEIGHTS}:by_patient": ("by_patient", "by_patient complex"),
    f"{WEIGHTS}:by_patient_in_three": ("by_patient_in_three",),
    f"{WEIGHTS}:product_gradients": ("product_gradients", "product_gradients complex"),
    f"{FACTORED}.norms": ("norms",),
    f"{FACTORED}.add_to": ("add_to",),
    "zetadp.privacy.contributions:_mapped_gradients": ("_mapped_gradients",),
}
"""Each kernel that a CPU uses, and its names in `called`: those for real and complex weights are told apart."""
ALL = {name for names in ON_A_CPU.values() for name in names}
REACHED = {
    "check_no_patient_adds_more_than_the_clip": ALL,
    "check_a_contribution_is_the_slope_of_the_patients_loss": ALL,
    "check_a_contribution_does_not_depend_on_others": ALL,
    "check_a_patient_that_is_not_finite_adds_zero": {"by_patient_in_three", "norms", "add_to"},
}
"""What each check must call at least."""


@contextmanager
def called() -> Iterator[set[str]]:
    """Collect the names of the kernels that are called in a block."""
    seen: set[str] = set()

    def watched(original: Any) -> Any:
        def kernel(*arguments: Any, **named: Any) -> Any:
            seen.add(original.__name__ + (" complex" if named.get("is_complex") else ""))
            return original(*arguments, **named)

        return kernel

    with ExitStack() as stack:
        for target in ON_A_CPU:
            stack.enter_context(installed(Mutant("watched", target, "", watched)))
        yield seen
