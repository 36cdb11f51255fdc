"""Readout of a public network's features: components, and the best public heads, both fitted on public images."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from zetadp.base.storage import read_stack
from zetadp.mri.fourier import to_kspace
from zetadp.mri.whitening import whiten
from zetadp.nn.backbone import Backbone
from zetadp.nn.heads import fit_projection, head_on, head_scores

logger = logging.getLogger(__name__)

EVERY = 5
"""A readout of all layers is fitted on every fifth slice of a patient, because neighbouring slices differ little."""


def read_public(files: Sequence[Path]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the images of all public patients and the names of the sequences.

    Images have shape (patient, sequence, slice, row, column). Each sequence of a patient is divided by its mean, and
    stored as float16, which is finer than the noise.
    """
    parts: list[np.ndarray] = []
    sequences: tuple[str, ...] = ()
    for file in files:
        stack = read_stack(file)
        sequences = stack.sequences
        scale = stack.values.mean(axis=(2, 3, 4), keepdims=True)
        parts.append((stack.values / scale).astype(np.float16))
    return np.concatenate(parts), sequences


def learn_readout(plain: Backbone, images: Sequence[np.ndarray], components: Sequence[int]) -> Backbone:
    """Return a backbone with centre, projection and public heads fitted on public images.

    Parameters
    ----------
    plain
        A backbone, whose own centre, projection and heads are ignored. If it reads all layers, each statistic is
        divided by its standard deviation first, and only as many components remain as the largest head takes.
    images
        Magnitude images of public patients of each kind, shape (patient, sequence, slice, row, column).
    components
        Numbers of complex components; one head is fitted for each. Numbers above that of the features are skipped.
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
    """Return a backbone with features from all its layers, fitted on several kinds of public patients.

    Parameters
    ----------
    backbone
        Backbone with the network and its provenance.
    kinds
        By name, images of public patients as in `learn_readout`.
    components
        Numbers of complex components; one head is fitted for each.
    held_out
        Number of patients of each kind, counted from the first, that nothing is fitted on. The heads are measured on
        them.
    centred
        Whether to subtract from a patient's features their mean over the patient's images.
    """
    count = sum(4 * width for width in backbone.settings.widths) * backbone.settings.convolutions
    none, own = torch.zeros(count), torch.eye(count)
    plain = replace(backbone, centre=none, projection=own, heads={}, layers=True, centred=centred)
    logger.info("fitting heads to the features of all layers")
    learnt = learn_readout(plain, [images[held_out:, :, ::EVERY] for images in kinds.values()], components)
    accuracy = {name: public_accuracy(learnt, images[:held_out]) for name, images in kinds.items()}
    logger.info("accuracy on %d held-out patients of each kind, by number of components: %s", held_out, accuracy)
    kept = {key: value for key, value in backbone.provenance.items() if not key.startswith("held_out")}
    made = {"layers": {"patients": {name: len(images) - held_out for name, images in kinds.items()}}}
    measured = {"held_out_patients": held_out, "held_out_accuracy": accuracy}
    return replace(learnt, provenance=kept | made | measured)


def _numbers(backbone: Backbone, images: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return features, real vectors of shape (image, 2 * component), and classes of all images, patient by patient."""
    parts = [backbone.features(whiten(to_kspace(patient.astype(np.float32)))) for patient in images]
    pairs = torch.view_as_real(torch.from_numpy(np.stack(parts)))
    patients, classes, slices = pairs.shape[:3]
    labels = torch.arange(classes).repeat_interleave(slices).repeat(patients)
    return pairs.reshape(len(labels), -1), labels
