"""What one patient adds to a message: its own clipped gradient, whoever else is drawn, and never more than the clip.

With wrong gradients, wrong clipping and wrong kernels, and patients that show in what others add.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from training_builder import items_each, joined

from mutants.installing import certain, mutant, mutants, replacement
from mutants.stub import CLASSES, CLIP, Chosen, Stub, federation, random_records
from zetadp.base.tensors import Layout
from zetadp.base.validation import UserError
from zetadp.brain.images import to_records
from zetadp.mechanism import clipping
from zetadp.mechanism.clipping import ClippedSums
from zetadp.mechanism.contributions import Contribution, Contributors
from zetadp.mechanism.grid import Grid, whole_steps
from zetadp.mechanism.release import Draw
from zetadp.mri.kspace import whiten
from zetadp.nn.models import NetworkSettings, build
from zetadp.training.records import LabelledItems, Node

SEQUENCES = ("FLAIR", "T1w", "T1gd", "T2w")
COMPLEX = NetworkSettings(widths=(24, 24), convolutions=1, hidden=40, groups=2)
"""The smallest shape whose second convolution takes three real products and whose hidden layer is kept as factors."""
REAL = NetworkSettings("real", widths=(2, 4), convolutions=1, hidden=34, groups=2)
"""The same for factors; real convolutions have one kernel."""


class Foreign(nn.Module):
    """A network of PyTorch's own layers, whose gradients are computed for one patient after the other."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(9)
        self.affine = nn.Linear(64, CLASSES, dtype=torch.complex64)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator) / 8

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of shape (image, class) for complex images of shape (image, 1, row, column)."""
        scores: Tensor = self.affine(images.flatten(1))
        return (scores.real.square() + scores.imag.square() + 1e-12).sqrt()


def contributions(folder: Path, data: LabelledItems, model: nn.Module, clip: float) -> Tensor:
    """Return what each record adds to a message if it is a patient alone at a node, shape (record, dimension)."""
    each = items_each(data)
    alone = [[record] for record in range(len(data.inputs) // each)]
    with federation(folder, alone, expected=1, clip=clip, records=data, model=model, images_per_patient=each) as fed:
        return fed.round(0).double()


def _imaginary(model: Stub) -> Stub:
    """Make every gradient of the complex parameters purely imaginary on real images: all scores are then imaginary."""
    for parameter in model.complex_map.parameters():
        parameter.data = 1j * parameter.data.imag
    return model


def _hostile() -> dict[str, tuple[nn.Module, LabelledItems]]:
    """Return networks and patients whose gradients are long, imaginary only, isotropic, or the same in all images."""
    random = random_records(24, scale=100.0)
    real = replace(random, inputs=random.inputs.real.to(torch.complex64))
    equal = random.inputs[::CLASSES].repeat_interleave(CLASSES, dim=0)
    same = replace(random, inputs=equal, targets=(random.targets == CLASSES - 1) * (CLASSES - 1))
    return {
        "random": (Stub(), random),
        "imaginary gradients": (_imaginary(Stub()), real),
        "equal images": (Stub(), same),
        **{f"equal images, {name}": (model, same) for name, model in _networks().items() if name != "affine"},
    }


def _networks() -> dict[str, nn.Module]:
    """Return networks that together need every kernel of a CPU."""
    shipped = {
        name: build(settings, CLASSES, 8, np.random.default_rng(4))
        for name, settings in (("complex", COMPLEX), ("real", REAL))
    }
    return {"affine": Stub(), **shipped, "foreign": Foreign()}


def _loss(model: nn.Module, layout: Layout, vector: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Return a patient's loss at flat weights, by ordinary layers in double precision."""
    scores = functional_call(model, layout.unflatten(vector), (images.to(torch.complex128),))
    return functional.cross_entropy(scores, labels)


@certain
def check_no_patient_adds_more_than_the_clip(folder: Path) -> None:
    """One patient alone moves the sum by at most B in the norm over all parts, however long its gradient; B = 2.

    Kinds of 24 patients, and networks that need every kernel. Whatever clips less than the whole, or by a norm that is
    too small for half of all gradients, exceeds B for one of them.
    """
    for name, (model, data) in _hostile().items():
        clipped_at(CLIP, contributions(folder / name, data, model, CLIP), name)


def clipped_at(clip: float, contributions: Tensor, where: str) -> None:
    """Compare the longest of contributions, shape (patient, dimension), with the clip that it should reach."""
    longest = float(contributions.norm(dim=1).max())
    assert longest <= clip, f"{where}: a patient adds {longest:.6f} at a clip of {clip}"
    assert longest > clip * (1 - 1e-4), f"{where}: no gradient was long enough to be clipped"


@certain
def check_a_contribution_is_the_slope_of_the_patients_loss(folder: Path) -> None:
    """Unclipped, a message is the gradient of the patient's loss: along any direction it predicts the loss's slope.

    The slope is a central difference in double precision, along random directions of all real and imaginary parts.
    Clipped, the message is the same direction at norm B or less.
    """
    for name, model in _networks().items():
        data = random_records(3, scale=1.0 if name in ("complex", "real") else 0.5)
        gradients = contributions(folder / name / "unclipped", data, model, math.inf)
        with federation(folder / name, [[0]], expected=1, model=model) as fed:
            layout = fed.layout
        weights = layout.flatten(dict(model.named_parameters())).detach().double()
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(6, len(weights), dtype=torch.float64, generator=generator)
        for patient in range(3):
            own = slice(CLASSES * patient, CLASSES * (patient + 1))
            of_patient = data.inputs[own], data.targets[own]
            length = float(gradients[patient].norm())
            for direction in directions:
                step = 1e-5 * direction / direction.norm()
                losses = [_loss(model, layout, weights + sign * step, *of_patient) for sign in (1, -1)]
                slope = float(losses[0] - losses[1]) / 2e-5
                predicted = float(gradients[patient] @ direction / direction.norm())
                # A random direction has a slope of about length / sqrt(dimension).
                tolerance = 0.01 * length / math.sqrt(len(weights))
                assert abs(slope - predicted) < tolerance, f"{name}: slope {slope:.5f}, predicted {predicted:.5f}"
        # Of three gradients the middle length clips some and leaves others.
        clip = float(gradients.norm(dim=1).median()) * 0.999
        clipped = contributions(folder / name / "clipped", data, model, clip)
        factors = (clip / gradients.norm(dim=1)).clamp_max(1.0)
        torch.testing.assert_close(clipped, gradients * factors[:, None], rtol=1e-4, atol=1e-6 * clip)


@certain
def check_a_contribution_does_not_depend_on_others(folder: Path) -> None:
    """In one round, what three patients add together is what each adds alone, image choices included.

    The accountant takes a round as a fixed vector of norm at most B added, or not, to what everybody else adds. With
    long gradients, half of each record's images chosen at random, networks that normalise, and calls that serve two
    patients, as with two threads.
    """
    data = random_records(3, images_per_class=2, scale=10.0, seed=5)
    with pytest.MonkeyPatch.context() as threads:
        threads.setattr(torch, "get_num_threads", lambda: 2)
        _independent(folder, data)


def _independent(folder: Path, data: LabelledItems) -> None:
    """Compare what patients add together with what each adds alone, for every network."""
    for name, model in _networks().items():

        def message(*members: int, name: str = name, model: nn.Module = model) -> Tensor:
            place = folder / name / f"drawn{members}"
            with federation(place, [[0, 1, 2]], expected=1.5, clip=0.05, kind=Chosen, records=data, model=model) as fed:
                mechanism = fed.nodes[0].mechanism
                assert isinstance(mechanism, Chosen)
                mechanism.members = members
                return fed.round(0)[0].double() * 1.5

        alone = torch.stack([message(patient) for patient in range(3)])
        assert float(message().abs().max()) == 0
        for members in ((0, 1), (1, 2), (0, 2), (0, 1, 2)):
            add_up(message(*members), alone[list(members)], 0.05, f"{name}: patients {members}")


def add_up(together: Tensor, alone: Tensor, clip: float, whose: str) -> None:
    """Compare what patients add together with the sum of what each adds alone, shape (patient, dimension)."""
    off = float((together - alone.sum(dim=0)).norm()) / clip
    assert off < 1e-3, f"{whose} together differ from the sum of each by {off:.3f} clips"


@certain
def check_a_patient_that_is_not_finite_adds_zero(folder: Path) -> None:
    """Images of NaN, of infinity or beyond float32's squares take no part; the rest of the round is as without them."""
    good = random_records(2, seed=6, scale=10.0)
    one = random_records(1)
    bad = [replace(one, inputs=torch.full_like(one.inputs, value)) for value in (math.nan, math.inf, 3e38)]
    data = joined(good, *bad)
    networks = _networks()
    for name, number in product(("affine", "complex"), range(len(bad))):
        how: dict[str, Any] = {"records": data, "model": networks[name]}
        place = folder / f"{name} {number}"
        with federation(place / "with", [[0, 1, 2 + number]], expected=3, **how) as fed:
            try:
                found = fed.round(0)[0]
            except (ArithmeticError, RuntimeError, UserError, ValueError) as error:
                msg = f"a round was broken off because of one patient: {error}"
                raise AssertionError(msg) from error
        with federation(place / "without", [[0, 1]], expected=2, **how) as fed:
            expected = fed.round(0)[0] * 2 / 3
        assert found.isfinite().all(), f"{name}: one patient made the message not finite"
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@certain
def check_nothing_longer_than_the_clip_gets_onto_the_grid(folder: Path) -> None:
    """Whatever floats did before, integer rows longer than the bound become zero, even where squares overflow int64."""
    for bits in (8, 24, 31):
        grid = Grid(bound=CLIP, bits=bits)
        for columns in (1, 4, 16, 100, 4096):
            for length in (0.5, 0.999, 1.001, 1.5, 2.0, math.sqrt(columns), 1e3):
                row = torch.full((1, columns), CLIP * length / math.sqrt(columns), dtype=torch.float64)
                values, _ = whole_steps(row, grid)
                squared = sum(int(value) ** 2 for value in values[0].tolist())
                assert squared <= 4**bits, f"{columns} coordinates of {2**bits} steps and length {length} got through"
                if length < 1:
                    assert squared > 0


@certain
def check_preparation_keeps_patients_apart(folder: Path) -> None:
    """A patient's images, whitened or standardised, are the same bits whatever the other patients' images are."""
    generator = np.random.default_rng(8)
    one, other = generator.standard_normal((2, 3, 4, 2, 8, 8)) + 3
    other[0] = one[0]
    other[1:] *= 50
    for prepare in (_whitened, _standardised):
        mine, changed = prepare(one)[0], prepare(other)[0]
        assert np.array_equal(mine, changed), f"{prepare.__name__} images change with other patients' images"


def _whitened(values: np.ndarray) -> np.ndarray:
    return whiten(values + 1j * values[..., ::-1, :])


def _standardised(values: np.ndarray) -> np.ndarray:
    found: np.ndarray = to_records(values.astype(np.float32), torch.device("cpu")).inputs.numpy()
    return found.reshape(len(values), -1)


SUMS = "zetadp.mechanism.clipping:clipped_sums"
FACTORS = "zetadp.mechanism.clipping:clip_factors"


def _by_image(original: Any, divide: bool) -> Any:
    """Return `clipped_sums` with every image treated as a patient."""

    def clipped_sums(contribution: Contribution, drawn: Contributors, **more: Any) -> Any:
        each = drawn.items.shape[1]
        alone = replace(drawn, items=drawn.items.view(-1, 1), groups=drawn.groups.repeat_interleave(each))
        found = original(contribution, alone, **more)
        return ClippedSums(found.sums / each if divide else found.sums, found.not_finite)

    return clipped_sums


@replacement(SUMS, check_no_patient_adds_more_than_the_clip)
def clipping_by_image_and_adding_up(original):
    return _by_image(original, divide=False)


@replacement(SUMS, check_a_contribution_is_the_slope_of_the_patients_loss)
def clipping_by_image_and_averaging(original):
    return _by_image(original, divide=True)


@mutant(SUMS, check_no_patient_adds_more_than_the_clip)
def clipping_by_layer_without_the_root(original, contribution, drawn, *, bound, **more):
    if bound is None or more["grid"] is not None or not len(drawn.items):
        return original(contribution, drawn, bound=bound, **more)
    gradients = contribution.of_units(drawn.inputs[drawn.items], drawn.targets[drawn.items], factors=False)
    factors = [clipping.clip_factors([g], bound)[0] for g in gradients]
    rows = torch.cat([f[:, None] * g.nan_to_num(0, 0, 0) for f, g in zip(factors, gradients, strict=True)], dim=1)
    return ClippedSums(torch.zeros(drawn.count, rows.shape[1]).index_add_(0, drawn.groups, rows), 0)


@mutant(SUMS, check_a_contribution_does_not_depend_on_others)
def clipping_of_the_sum(original, *arguments, bound, **more):
    if bound is None or more["grid"] is not None:
        return original(*arguments, bound=bound, **more)
    sums = original(*arguments, bound=None, **more).sums
    return ClippedSums(sums * clipping.clip_factors([sums], bound)[0][:, None], 0)


@mutant(SUMS, check_a_contribution_does_not_depend_on_others)
def only_the_first_pass_is_summed(original, contribution, drawn, **more):
    # A batch of fixed shape: who does not fit is left out.
    return original(contribution, replace(drawn, items=drawn.items[:2], groups=drawn.groups[:2]), **more)


mutants(
    FACTORS,
    check_no_patient_adds_more_than_the_clip,
    norm_of_the_real_part_only=lambda original, rows, bound: original([g[:, 0::2] for g in rows], bound),
    norm_in_bfloat16=lambda original, rows, bound: original(
        [torch.cat(rows, dim=1).norm(dim=1, keepdim=True).bfloat16().float()], bound
    ),
    norm_of_the_longest_layer=lambda original, rows, bound: original(
        [torch.stack([g.norm(dim=1) for g in rows]).amax(dim=0)[:, None]], bound
    ),
)


@replacement(FACTORS, check_no_patient_adds_more_than_the_clip)
def norm_from_squares_without_modulus(original):
    def square_root(g):
        # abs(sum of z^2), whose root takes the place of the norm.
        if g.shape[1] % 2:
            return g
        z = torch.view_as_complex(g.reshape(len(g), -1, 2).double())
        return z.square().sum(dim=1).abs().sqrt()[:, None]

    return lambda gradients, bound: original([square_root(g) for g in gradients], bound)


@mutant(FACTORS, check_no_patient_adds_more_than_the_clip)
def factor_rounded_to_nearest(original, gradients, bound):
    found, finite = original(gradients, bound)
    return (found.double() / clipping.ROUNDED_DOWN).clamp_max(1.0).float(), finite


@mutant(FACTORS, check_a_patient_that_is_not_finite_adds_zero)
def patient_that_is_not_finite_goes_through(original, gradients, bound):
    found, finite = original(gradients, bound)
    return torch.where(finite, found, 1.0), torch.ones_like(finite)


@mutant(FACTORS, check_a_patient_that_is_not_finite_adds_zero)
def patient_that_is_not_finite_breaks_the_round_off(original, gradients, bound):
    found, finite = original(gradients, bound)
    if not finite.all():
        msg = "found gradients that are not finite"
        raise FloatingPointError(msg)
    return found, finite


@mutant("zetadp.mechanism.grid:norms_within", check_nothing_longer_than_the_clip_gets_onto_the_grid)
def integer_norm_overflows(original, values, grid):
    return (values * values).sum(dim=1) <= min(4**grid.bits, 2**63 - 1)


@mutant("zetadp.mechanism.factored:fold_gradient", check_a_contribution_is_the_slope_of_the_patients_loss)
def gradient_without_conjugate(original, block):
    # sum of g x in place of sum of g conj(x)
    upper, lower = block.chunk(2, dim=1)
    (w11, w12), (w21, w22) = upper.chunk(2, dim=2), lower.chunk(2, dim=2)
    return torch.complex(w11 - w22, w21 + w12)


@mutant("zetadp.training.records:choose_items", check_a_contribution_does_not_depend_on_others)
def images_chosen_for_those_drawn_in_turn(original, node, draw, strata, count):
    # The first drawn gets what the stream gives first, whoever it is.
    in_turn = Draw(event=draw.event, members=np.arange(len(draw.members)))
    drawn = Node(node.mechanism, [node.units[member] for member in draw.members])
    return original(drawn, in_turn, strata, count) if len(draw.members) else original(node, draw, strata, count)


@mutant("zetadp.nn.normalisation:ComplexGroupNorm.forward", check_a_contribution_does_not_depend_on_others)
def normalisation_across_images(original, self, x):
    # Batch normalisation: every image has the mean of all.
    return original(self, x - x.mean(dim=0, keepdim=True))


@mutant("zetadp.mri.kspace:whiten", check_preparation_keeps_patients_apart)
def whitening_across_patients(original, values, epsilon=1e-05):
    # One mean and one covariance for the stack, which is laid out as a single image.
    return original(values.reshape(1, -1), epsilon).reshape(values.shape)


@mutant("zetadp.brain.images:standardise", check_preparation_keeps_patients_apart)
def standardising_across_patients(original, images):
    return original(images.reshape(1, -1)).reshape(images.shape)


@mutant("zetadp.training.records:choose_items", check_a_contribution_is_the_slope_of_the_patients_loss)
def last_item_of_the_next_unit(original, node, draw, strata, count):
    # Ends of units are taken for included: one off in the map from items to their owners.
    found, weights = original(node, draw, strata, count)
    found = found.copy()
    found[:, -1] = (found[:, -1] + 1) % len(strata)
    return found, weights


@mutant("zetadp.training.records:choose_items", check_a_contribution_does_not_depend_on_others)
def first_unit_drawn_takes_the_place_of_the_last(original, node, draw, strata, count):
    # A row of a batch that is counted twice, in place of another.
    found, weights = original(node, draw, strata, count)
    found = found.copy()
    found[-1:] = found[:1]
    return found, weights


WEIGHTS = "zetadp.nn.weight_gradients"
THREE, BY_PATIENT, PRODUCT = (
    f"{WEIGHTS}:{name}" for name in ("by_patient_in_three", "by_patient", "product_gradients")
)


@mutant("zetadp.mechanism.factored:Factored.norms", check_no_patient_adds_more_than_the_clip)
def norm_of_factors_without_cross_terms(original, self):
    squares = self.left.double().square().sum(dim=2) * self.right.double().square().sum(dim=2)
    return squares.sum(dim=1).sqrt()


@mutant("zetadp.mechanism.factored:Factored.add_to", check_a_contribution_is_the_slope_of_the_patients_loss)
def factors_scaled_on_both_sides(original, self, total, factors):
    return original(self, total, factors.square())


@mutant("zetadp.mechanism.factored:Factored.cleaned", check_a_patient_that_is_not_finite_adds_zero)
def factors_multiplied_by_zero_uncleaned(original, self, finite):
    return self


@mutant("zetadp.mechanism.contributions:_of_product", check_a_contribution_is_the_slope_of_the_patients_loss)
def factored_gradient_without_conjugate(original, *arguments):
    def conjugate(factors):
        real, imaginary = factors.right.chunk(2, dim=2)
        return type(factors)(factors.left, torch.cat((real, -imaginary), dim=2), factors.is_complex)

    found = original(*arguments)
    return {name: conjugate(factors) if factors.is_complex else factors for name, factors in found.items()}


@mutant(THREE, check_a_contribution_is_the_slope_of_the_patients_loss)
def three_products_without_conjugate(original, x, gradient, patients, geometry):
    real, imaginary = x.chunk(2, dim=1)
    return original(torch.cat((real, -imaginary), dim=1), gradient, patients, geometry)


@mutant(THREE, check_a_contribution_does_not_depend_on_others)
def patients_of_a_call_share_a_gradient(original, x, gradient, patients, geometry):
    found = original(x, gradient, patients, geometry)
    for call in torch.split(found, torch.get_num_threads()):
        call.copy_(call.mean(dim=0))
    return found


def _of_the_first_image(*, complex_ones: bool) -> Any:
    """Return a kernel that looks at one image of each patient where weights are complex, or where they are real."""

    def kernel(original: Any, x: Tensor, gradient: Tensor, patients: int, *geometry: Any, is_complex: bool) -> Any:
        if is_complex == complex_ones:
            images = len(x) // patients
            x, gradient = x[::images], gradient[::images]
        return original(x, gradient, patients, *geometry, is_complex=is_complex)

    return kernel


for kind, is_complex in (("real", False), ("complex", True)):
    for what, kernel in (("gradient", BY_PATIENT), ("product", PRODUCT)):
        wrong = {f"{kind}_{what}_of_the_first_image": _of_the_first_image(complex_ones=is_complex)}
        mutants(kernel, check_a_contribution_is_the_slope_of_the_patients_loss, **wrong)


@mutant("zetadp.mechanism.contributions:_one_after_the_other", check_a_contribution_is_the_slope_of_the_patients_loss)
def gradients_of_other_networks_added_up(original, of, images, labels, weights, *rest):
    return original(of, images, labels, torch.ones(labels.shape) if weights is None else weights, *rest)
