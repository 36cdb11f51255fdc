"""Readout of a public network's features on public images: components, and the best public heads on them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zetadp.kspace.fourier import to_kspace
from zetadp.kspace.whitening import whiten
from zetadp.nn.backbone import Backbone
from zetadp.nn.projection import fit_projection, head_on, head_scores
from zetadp.storage import read_stack

logger = logging.getLogger(__name__)

EVERY = 5
"""Of a patient's slices, every fifth is learnt from where all layers are read: neighbours differ little."""


def read_public(files: Sequence[Path]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the images of all public patients in half precision, which is finer than their noise, and the classes."""
    parts: list[np.ndarray] = []
    sequences: tuple[str, ...] = ()
    for file in files:
        stack = read_stack(file)
        sequences = stack.sequences
        scale = stack.values.mean(axis=(2, 3, 4), keepdims=True)
        parts.append((stack.values / scale).astype(np.float16))
    return np.concatenate(parts), sequences


def learn_readout(plain: Backbone, images: Sequence[np.ndarray], components: Sequence[int]) -> Backbone:
    """Return a backbone with centre, projection and public heads that are learnt from public images.

    Parameters
    ----------
    plain
        A backbone; its own centre, projection and heads are of no effect. Where it reads all layers, each statistic
        is divided by its standard deviation first, and only the components that the largest head takes are kept.
    images
        Magnitude images of public patients of each kind, shape (patient, sequence, slice, row, column).
    components
        Numbers of complex components of the heads; larger ones than there are components are left out.
    """
    count = len(plain.centre)
    bare = replace(plain, centre=torch.zeros(count), projection=torch.eye(count), heads={})
    found, labels = (torch.cat(parts) for parts in zip(*(_numbers(bare, each) for each in images), strict=True))
    scale = found.std(0) + 1e-6 if plain.layers else torch.ones(count)
    centre, projection = fit_projection(found / scale, labels)
    if plain.layers:
        projection = projection[:, : 2 * max(components)]
    centre, projection = centre * scale, projection / scale[:, None]
    rotated = (found - centre) @ projection
    heads = {n: head_on(rotated, labels, n) for n in components if 2 * n <= projection.shape[1]}
    return replace(plain, centre=centre, projection=projection.contiguous(), heads=heads)


def public_accuracy(backbone: Backbone, images: np.ndarray) -> dict[str, float]:
    """Return the share of public images that each public head classifies correctly, by number of components."""
    found, labels = _numbers(backbone, images)
    components = torch.view_as_complex(found.reshape(len(found), -1, 2))
    return {
        str(n): float((head_scores(components, head).argmax(dim=1) == labels).float().mean())
        for n, head in backbone.heads.items()
    }


def read_all_layers(
    backbone: Backbone, kinds: dict[str, np.ndarray], components: Sequence[int], held_out: int, *, centred: bool = False
) -> Backbone:
    """Return a backbone whose features are made of all its layers, learnt from several kinds of public patients.

    Parameters
    ----------
    backbone
        The network, and how it was made.
    kinds
        By name, images of public patients as `learn_readout` takes them.
    components
        Numbers of complex components of the heads.
    held_out
        The first patients of each kind, which nothing is learnt from: the heads are measured on them.
    centred
        Whether a patient's features are taken less their mean over the patient's images.
    """
    count = sum(4 * width for width in backbone.settings.widths) * backbone.settings.convolutions
    none, own = torch.zeros(count), torch.eye(count)
    plain = replace(backbone, centre=none, projection=own, heads={}, layers=True, centred=centred)
    logger.info("learning what the features of all layers tell")
    learnt = learn_readout(plain, [images[held_out:, :, ::EVERY] for images in kinds.values()], components)
    accuracy = {name: public_accuracy(learnt, images[:held_out]) for name, images in kinds.items()}
    logger.info("accuracy on %d held-out patients of each kind, by number of components: %s", held_out, accuracy)
    kept = {key: value for key, value in backbone.provenance.items() if not key.startswith("held_out")}
    made = {"layers": {"patients": {name: len(images) - held_out for name, images in kinds.items()}}}
    measured = {"held_out_patients": held_out, "held_out_accuracy": accuracy}
    return replace(learnt, provenance=kept | made | measured)


def _numbers(backbone: Backbone, images: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return features as real vectors, shape (image, 2 * component), and classes of all images of patients."""
    parts = [backbone.features(whiten(to_kspace(patient.astype(np.float32)))) for patient in images]
    pairs = torch.view_as_real(torch.from_numpy(np.stack(parts)))
    patients, classes, slices = pairs.shape[:3]
    labels = torch.arange(classes).repeat_interleave(slices).repeat(patients)
    return pairs.reshape(len(labels), -1), labels
