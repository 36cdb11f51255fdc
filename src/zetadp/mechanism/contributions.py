"""Contributions of units: the gradient of a network, or a statistic. Here "patient" means the unit.

A contribution is computed from all items of one unit, and from no items of other units. Every contribution is clipped
in `zetadp.mechanism.clipping`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from zetadp.base.tensors import Layout
from zetadp.base.usercode import user_code
from zetadp.base.validation import UserError
from zetadp.mechanism.dropout import drawn_by_unit
from zetadp.mechanism.factored import Factored, are_smaller, calls_of, split_by_patient

Losses: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Returns the real loss of each item, shape (item,), for the network's outputs, shape (item, ...), and the targets. Its
mean over a unit's items makes the unit's gradient."""


LOSS_FAILED = "loss: Expected a loss of the network's outputs and the labels, found an error: "
"""Beginning of the message on a loss that raised an exception (`zetadp.base.usercode.user_code`)."""


def complex_hint(outputs: Tensor) -> str:
    """Return the end of that message: advice for complex outputs, which many losses do not take."""
    return " Complex outputs need a real loss: let the network return .abs()." if outputs.is_complex() else ""


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each item, shape (item,)."""
    return functional.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Contributors:
    """Items of units, and the sums to which each unit is added.

    Attributes
    ----------
    inputs, targets
        Inputs and targets of all items, shape (item, ...). Each pass looks up those of its patients, so that memory
        holds the inputs of one pass and not of a round.
    items
        Positions of each patient's items, shape (patient, image), in CPU memory or on the device of the inputs. May be
        empty.
    groups
        Group (node) of each patient, shape (patient,), in CPU memory, because reading it from a GPU would cause a wait.
    count
        Number of groups.
    members
        If a patient can be in no sum or in several, as with mixed rows: positions of patients, in ascending order,
        shape (membership,). Each patient is added to the group at the same position of ``groups``. None if each
        patient is in one sum.
    weights
        Weight of each image in its patient's mean, shape (patient, image), each row summing to one. None if all images
        weigh the same.
    keys
        Key of each patient's dropout, int64 of shape (patient,). None for networks without.
    """

    inputs: Tensor
    targets: Tensor
    items: Tensor
    groups: Tensor
    count: int
    members: Tensor | None = None
    weights: Tensor | None = None
    keys: Tensor | None = None


class Contribution(Protocol):
    """A quantity that is computed for each unit and then clipped."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Real numbers in each of its parts."""

    def of_units(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        factors: bool,
        weights: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> list[Tensor | Factored]:
        """Return one contribution per patient, part by part: tensors of shape (patient, size).

        Parameters
        ----------
        images
            Tensor of shape (patient, image, ...).
        labels
            Targets of shape (patient, image, ...).
        factors
            Whether parts may be returned as factors if that is cheaper.
        weights, keys
            As in `Contributors`.
        """


@dataclass(frozen=True)
class Gradient:
    """The gradient of a patient's loss, which is the mean over its images.

    Attributes
    ----------
    model, layout
        The network and the order of its parameters.
    losses
        Loss of each image.
    rules
        Whether all patients go through the network in one pass although some of its layers are no `unit_layer`s. That
        the network uses the weights of these layers in them alone, and images in their order, was checked.
    """

    model: nn.Module
    layout: Layout
    losses: Losses = cross_entropies
    rules: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Real numbers in each parameter."""
        return self.layout.sizes

    @cached_property
    def trained_layers(self) -> dict[str, tuple[nn.Module, list[str]]]:
        """Return each module that directly owns trained parameters, and their names, by the name of the module.

        They are looked up once, since a checked network has the same modules in every pass.
        """
        layers = ((layer, module, _trained(module)) for layer, module in self.model.named_modules())
        return {layer: (module, trained) for layer, module, trained in layers if trained}

    @cached_property
    def knows_units(self) -> bool:
        """Whether one pass of all patients gives their gradients without any rule (`knows_units`)."""
        return knows_units(self.model)

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters as they are now, by name, in the order of the layout."""
        parameters = {
            _parameter(layer, name): getattr(module, name)
            for layer, (module, names) in self.trained_layers.items()
            for name in names
        }
        return {name: parameters[name] for name in self.layout.names}

    def of_units(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        factors: bool,
        weights: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> list[Tensor | Factored]:
        """Return one gradient per patient, parameter by parameter. Gradients of some layers are factors.

        Complex parameters are interleaved real and imaginary parts of ``dL/dRe + i dL/dIm`` (PyTorch's convention,
        twice the conjugate Wirtinger derivative). In one pass of all patients, they cost about as much as one ordinary
        gradient. A network that cannot take all patients at once takes one after the other, which is slower.
        """
        names = self.layout.names
        # An ordinary gradient of one patient is a third quicker than a pass that follows rules.
        if (len(labels) == 1 or not self.rules) and (keys is not None or not self.knows_units):
            return [*_one_after_the_other(self, images, labels, weights, keys)]
        gradients, of_layers = _gradients_of_a_pass(self, images, labels, weights, keys, factors=factors)
        return [of_layers[name].smallest(factors=factors) if name in of_layers else gradients[name] for name in names]


class Statistic(ABC):
    """A contribution other than a gradient: one real vector, a function of this patient alone."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Length of the vector."""

    @abstractmethod
    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return real vectors of shape (patient, dimension).

        Parameters
        ----------
        images
            Tensor of shape (patient, image, ...).
        labels
            Targets of shape (patient, image, ...).
        """

    @property
    def sizes(self) -> tuple[int, ...]:
        """Length of the vector."""
        return (self.dimension,)

    def of_units(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        factors: bool,
        weights: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> list[Tensor | Factored]:
        """Return the vectors of all patients, or weighted means of the vectors of single images."""
        vectors = self(images, labels)
        if weights is None:
            return [vectors]
        single = [self(images[:, [index]], labels[:, [index]]) for index in range(labels.shape[1])]
        weighted = (torch.stack(single, dim=1) * weights[..., None]).sum(dim=1)
        # Patients with enough images keep their bits, even if other patients have too few.
        return [torch.where((weights > 0).all(dim=1, keepdim=True), vectors, weighted)]


Layer = TypeVar("Layer", bound=type[nn.Module])
_UNIT_LAYERS: list[type[nn.Module]] = []
_PRODUCTS: list[type[nn.Module]] = []


def unit_layer(layer: Layer) -> Layer:
    """Declare, as a decorator, that layers of a class and of its subclasses can give one gradient per unit.

    Their parameters may have a leading unit axis of length P (all P slices are equal, usually an expanded view). The
    items of a batch are then P consecutive blocks of equal length, one per unit. Outputs are the same as without the
    axis. The gradient of a parameter has the axis too: slice p is the gradient of unit p's part of the loss.
    """
    _UNIT_LAYERS.append(layer)
    return layer


def unit_product(layer: Layer) -> Layer:
    """Declare a `unit_layer` that multiplies features, shape (item, feature), by the matrix ``weight``, once per call.

    Complex features are stacked, real parts first. Layers of exactly this class store gradients of large matrices as
    factors.
    """
    _PRODUCTS.append(layer)
    return unit_layer(layer)


Rule = Callable[[Any, Tensor, Tensor, int], Mapping[str, Tensor | Factored]]
_RULES: dict[type[nn.Module], Rule] = {}


def unit_rule(*layers: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Declare, as a decorator, a function that returns each unit's gradients of the parameters of a layer.

    It takes a layer of exactly one of these classes, the input and the gradient of the output of one call, whose first
    axis is items in blocks of equal length, one per unit, and the number of units. It returns one tensor per parameter,
    by its name, shape (unit, ...), or factors. Layers without a rule follow `of_any_layer`.
    """

    def declare(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(layers, rule))
        return rule

    return declare


def of_any_layer(layer: nn.Module, x: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return each unit's gradients of the parameters that a module owns directly, as `unit_rule` says.

    The module is evaluated once more, mapped over units by `torch.vmap`.
    """
    parameters = {name: p.detach() for name, p in layer.named_parameters(recurse=False) if p.requires_grad}

    def product(parameters: dict[str, Tensor], x: Tensor, gradient: Tensor) -> Tensor:
        output: Tensor = functional_call(layer, parameters, (x,))
        return (output * gradient.conj()).real.sum() if output.is_complex() else (output * gradient).sum()

    of_units = (tensor.unflatten(0, (units, -1)) for tensor in (x, gradient))  # type: ignore[no-untyped-call]
    gradients = vmap(grad(product), (None, 0, 0))(parameters, *of_units)
    # The weights of layers inside the module belong to the graph.
    return {name: gradient.detach() for name, gradient in gradients.items()}


def knows_units(model: nn.Module) -> bool:
    """Return whether every module that directly owns trained parameters is a `unit_layer`."""
    return all(_knows_units(module) or not _trained(module) for module in model.modules())


def _knows_units(module: nn.Module) -> bool:
    return isinstance(module, tuple(_UNIT_LAYERS))


def _trained(module: nn.Module) -> list[str]:
    """Return the names of the trained parameters that a module owns directly."""
    return [name for name, p in module.named_parameters(recurse=False) if p.requires_grad]


def _parameter(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name


def _of_product(layer: nn.Module, x: Tensor, gradient: Tensor, units: int) -> dict[str, Tensor | Factored]:
    """Return a matrix's gradients as factors; nothing for complex features, with which a layer calls itself stacked."""
    if x.is_complex():
        return {}
    return {"weight": Factored(*split_by_patient(gradient, x, units), layer.get_parameter("weight").is_complex())}


def _gradients_of_a_pass(
    of: Gradient, images: Tensor, labels: Tensor, weights: Tensor | None, keys: Tensor | None, *, factors: bool
) -> tuple[dict[str, Tensor], dict[str, Factored]]:
    """Return `Gradient.of_units` by one pass of all patients, by name, and of some matrices as factors."""
    model, losses = of.model, of.losses
    patients, per_patient = labels.shape[:2]
    detached = {name: p.detach() for name, p in of.parameters().items()}
    ruled: dict[str, nn.Module] = {}
    rules: dict[str, Rule] = {}
    ruled_names = set()
    for layer, (module, trained) in of.trained_layers.items():
        weight = _parameter(layer, "weight")
        if not _knows_units(module):
            ruled[layer], rules[layer] = module, _RULES.get(type(module), of_any_layer)
            ruled_names |= {_parameter(layer, name) for name in trained}
        elif (
            factors
            and type(module) in _PRODUCTS
            and weight in detached
            and are_smaller(per_patient, *detached[weight].shape)
        ):
            ruled[layer], rules[layer] = module, _of_product
            ruled_names.add(weight)
    leaves = {
        name: parameter.unsqueeze(0).expand(patients, *parameter.shape).requires_grad_()
        for name, parameter in detached.items()
        if name not in ruled_names
    }
    with calls_of(ruled) as calls, drawn_by_unit(keys):
        inputs = images.flatten(0, 1)
        # Where no parameter has a leaf of its own, the network's are taken: nothing asks for their gradients.
        scores = functional_call(model, {**detached, **leaves}, (inputs,)) if leaves else model(inputs)
    item_losses = compute_item_losses(losses, scores, labels.flatten(0, 1))
    # The gradient of the sum of the losses times their weights, without both operations.
    scales = (
        torch.full_like(item_losses, 1 / per_patient) if weights is None else weights.flatten().to(item_losses.dtype)
    )
    variables: list[Any] = [*leaves.values(), *(call.output for call in calls)]
    gradients = torch.autograd.grad(item_losses, variables, scales)
    rows = dict(zip(leaves, _rows(gradients[: len(leaves)], patients), strict=True))
    factored: dict[str, Factored] = {}
    for call, gradient in zip(calls, gradients[len(leaves) :], strict=True):
        for parameter, value in rules[call.name](ruled[call.name], call.x, gradient, patients).items():
            name = _parameter(call.name, parameter)
            if name not in detached:
                continue
            if isinstance(value, Factored):
                factored[name] = value.plus(factored[name]) if name in factored else value
            else:
                (row,) = _rows([value], patients)
                rows[name] = row + rows[name] if name in rows else row
    return rows, factored


def _one_after_the_other(
    of: Gradient, images: Tensor, labels: Tensor, weights: Tensor | None, keys: Tensor | None
) -> list[Tensor]:
    """Return `Gradient.of_units` of any network by one ordinary gradient for each patient."""
    if weights is None:
        weights = torch.full(labels.shape[:2], 1 / labels.shape[1], dtype=images.real.dtype, device=labels.device)
    trained = [*of.parameters().values()]
    gradients = []
    for index, targets in enumerate(labels):
        with drawn_by_unit(None if keys is None else keys[index : index + 1]):  # a list would make a GPU wait
            outputs = of.model(images[index])
        losses = compute_item_losses(of.losses, outputs, targets)
        # The gradient of the sum of the losses times their weights, without both operations.
        of_patient = torch.autograd.grad(losses, trained, weights[index].to(losses.dtype), materialize_grads=True)
        gradients.append(of_patient)
    return _rows([_stacked(of_parameter) for of_parameter in zip(*gradients, strict=True)], len(labels))


def _stacked(gradients: Sequence[Tensor]) -> Tensor:
    """Return the gradients of one parameter with a patient axis; that of a single patient is not copied."""
    one = gradients[0]
    if len(gradients) > 1 or one.is_conj() or one.is_neg():
        return torch.stack(list(gradients))
    return one.contiguous().unsqueeze(0)


def compute_item_losses(losses: Losses, outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the losses of items. Refuse anything but one real number per item, as the mean would be wrong."""
    with user_code(LOSS_FAILED, complex_hint(outputs)):
        values = losses(outputs, targets)
    is_tensor = isinstance(values, Tensor)
    if not is_tensor or values.shape != targets.shape[:1] or not values.is_floating_point():
        kind = f"shape {tuple(values.shape)} of {values.dtype}" if is_tensor else type(values).__name__
        raise UserError(
            f"loss: Expected one real loss per item, shape ({len(targets)},), found {kind}. Let it return the losses "
            "of single items, for instance with reduction='none'. A mean over a batch mixes patients."
        )
    return values


def _rows(gradients: Sequence[Tensor], patients: int) -> list[Tensor]:
    """Return gradients with a patient axis as real tensors of shape (patient, size)."""
    return [(torch.view_as_real(g) if g.is_complex() else g).reshape(patients, -1) for g in gradients]
