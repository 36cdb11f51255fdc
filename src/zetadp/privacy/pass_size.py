"""How many images fit in one pass of a private step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call

from zetadp.nn.layers import knows_patients
from zetadp.nn.parameters import Layout

PASS_BYTES = 1 << 29
"""What the images of a pass may hold between forward and backward, with their patients' gradients."""


def images_in_a_pass(model: nn.Module, layout: Layout, images: Tensor, images_per_patient: int) -> int:
    """Return how many images a pass may have so that it holds `PASS_BYTES` at most, about; at least one.

    What an image holds is found by evaluating the network on zeros. It follows from the network and the size of
    images alone, so that every machine finds the same.

    Parameters
    ----------
    model, layout
        The network and the order of its trained parameters.
    images
        Any images, shape (image, ...), of which only type, device and the shape of one count.
    images_per_patient
        Images that share one patient's gradient.
    """
    one, two = (torch.zeros(count, *images.shape[1:], dtype=images.dtype, device=images.device) for count in (1, 2))
    # The second image adds what every further one adds; the first comes with the weights.
    of_an_image = _held(model, layout, two) - _held(model, layout, one)
    of_a_gradient = layout.dimension * torch.float32.itemsize
    return max(1, PASS_BYTES // (of_an_image + math.ceil(of_a_gradient / images_per_patient)))


def _held(model: nn.Module, layout: Layout, images: Tensor) -> int:
    """Return the bytes that are kept for the way back when a network is evaluated, each image being a patient."""
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
        return tensor

    parameters = {name: model.get_parameter(name).detach() for name in layout.names}
    if knows_patients(model):
        parameters = {name: p.unsqueeze(0).expand(len(images), *p.shape) for name, p in parameters.items()}
    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        functional_call(model, {name: p.requires_grad_() for name, p in parameters.items()}, (images,))
    return sum(storage.nbytes() for storage in storages.values())
