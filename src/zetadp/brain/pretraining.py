"""Training the public backbone on simulated patients, and the readout of its features: components and public heads.

This is ordinary training, without private data or noise.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.base.logs import PROGRESS, time_left
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import Items
from zetadp.base.tensors import to_device
from zetadp.base.validation import UserError
from zetadp.brain.backbone import Backbone, normalise_scale
from zetadp.brain.settings import BackboneTraining
from zetadp.mri.decathlon import SEQUENCES
from zetadp.mri.kspace import augment, to_kspace, whiten
from zetadp.nn.heads import fit_head, fit_projection, head_scores
from zetadp.nn.models import ConvolutionalClassifier, NetworkSettings, build

logger, progress = logging.getLogger(__name__), logging.getLogger(PROGRESS)


def pretrain(
    network: NetworkSettings,
    settings: BackboneTraining,
    images: np.ndarray,
    watched: np.ndarray,
    *,
    device: torch.device | str = "cpu",
) -> Backbone:
    """Train a network on public images, and fit a readout of its features.

    The readout is fitted on half of the public patients and measured on the held-out ones.

    Parameters
    ----------
    network
        A complex network on k-space with a pooled head.
    settings
        Settings of the training.
    images, watched
        Magnitude images of public patients in any unit, for training and held out, shape (patient, sequence, slice,
        row, column).
    device
        Device for the training.

    Raises
    ------
    UserError
        If the batch is not a multiple of the number of sequences, or the network has no pooled complex head.
    """
    model = _build_network(network, settings, images.shape)
    model.to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    began = reported = time.monotonic()
    running = torch.full((), math.nan, dtype=torch.float64, device=device)
    for step in range(settings.steps):
        running = _step(model, optimiser, settings, images, step, running)
        done, now = step + 1, time.monotonic()
        if now - reported > 30 or done == settings.steps:
            reported = now
            left = time_left((now - began) / done * (settings.steps - done))
            progress.info("step %d of %d, loss %.3f, about %s left", done, settings.steps, float(running), left)
    model.eval().requires_grad_(requires_grad=False)
    logger.info("fitting heads to the features")
    provenance = json.loads(json.dumps({"network": network.to_json(), "pretraining": asdict(settings)}))
    provenance |= {"patients": len(images), "digest": _digest(network, settings, images)}
    size = 2 * network.widths[-1]
    centre, identity = torch.zeros(size), torch.eye(size)
    plain = Backbone(
        model,
        network,
        SEQUENCES,
        images.shape[-1],
        centre,
        identity,
        heads={},
        provenance=provenance,
        shifts=settings.places,
    )
    learnt = learn_readout(plain, [images[::2]], settings.components)
    accuracy = public_accuracy(learnt, watched)
    logger.info("accuracy on %d held-out public patients, by number of components: %s", len(watched), accuracy)
    return replace(learnt, provenance={**provenance, "held_out_patients": len(watched), "held_out_accuracy": accuracy})


def _step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    settings: BackboneTraining,
    images: np.ndarray,
    step: int,
    running: Tensor,
) -> Tensor:
    """Take one step, and return the running mean of the loss. It stays on the device: reading it would block a GPU."""
    for group in optimiser.param_groups:
        group["lr"] = settings.rate(step)
    inputs, labels = (to_device(torch.from_numpy(part), running.device) for part in draw_batch(images, settings, step))
    loss = functional.cross_entropy(model(inputs.unsqueeze(1)), labels, label_smoothing=settings.smoothing)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    latest = loss.detach().double()
    return torch.where(running.isnan(), latest, 0.98 * running + 0.02 * latest)


def draw_batch(images: np.ndarray, settings: BackboneTraining, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k-space of a step's images, shape (image, row, column), and their classes.

    For given images and settings, a batch depends only on the step. A quarter of the images is whitened, so that a
    network on whitened k-space can start from the same weights; the others are scaled, as for features.
    """
    random = stream(settings.seed, Purpose.PRETRAINING, step)
    classes = images.shape[1]
    patients = random.integers(len(images), size=settings.batch // classes)
    slices = random.integers(images.shape[2], size=(len(patients), classes))
    chosen = images[patients[:, None], np.arange(classes), slices].astype(np.float32)
    varied = augment(chosen.reshape(-1, *images.shape[3:]), random)
    kspace = to_kspace(varied)
    whitened = random.random((len(kspace), 1, 1)) < WHITENED
    inputs = np.where(whitened, whiten(kspace), normalise_scale(torch.from_numpy(kspace)).numpy())
    return inputs, np.tile(np.arange(classes), len(patients))


def _build_network(
    network: NetworkSettings, settings: BackboneTraining, shape: tuple[int, ...]
) -> ConvolutionalClassifier:
    """Return the network with newly drawn weights."""
    if settings.batch % shape[1]:
        raise UserError(f"Expected pretraining.batch to be a multiple of {shape[1]} sequences, found {settings.batch}.")
    model = build(network, shape[1], shape[-1], stream(settings.seed, Purpose.WEIGHTS))
    if not isinstance(model, ConvolutionalClassifier) or not (model.complex and model.pooled):
        raise UserError("Expected a network of family complex with head pooled for the backbone.")
    return model


def _digest(network: NetworkSettings, settings: BackboneTraining, images: np.ndarray) -> str:
    """Return a hash of all inputs of the backbone's training."""
    digest = hashlib.sha256(json.dumps([network.to_json(), asdict(settings), images.shape], sort_keys=True).encode())
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()


WHITENED = 0.25
"""Share of the training images whose k-space is whitened."""
EVERY = 5
"""A readout of all layers is fitted on every fifth slice of a patient, because neighbouring slices differ little."""


def read_public(files: Sequence[Path]) -> np.ndarray:
    """Return the images of all public patients, shape (patient, sequence, slice, row, column).

    Each sequence of a patient is divided by its mean, and stored as float16, which is finer than the noise.
    """
    parts = []
    for file in files:
        values = Items.read(file, ("values",)).arrays["values"]
        parts.append((values / values.mean(axis=(2, 3, 4), keepdims=True)).astype(np.float16))
    return np.concatenate(parts)


def learn_readout(plain: Backbone, images: Sequence[np.ndarray], components: Sequence[int]) -> Backbone:
    """Return a backbone with centre, projection and public heads fitted on public images.

    Parameters
    ----------
    plain
        A backbone with unchanged features: its centre is zero, its projection the identity. If it reads all layers,
        each statistic is divided by its standard deviation first, and only as many components remain as the largest
        head takes.
    images
        Magnitude images of public patients of each kind, shape (patient, sequence, slice, row, column).
    components
        Numbers of complex components; one head is fitted for each. Numbers above that of the features are skipped.
        If a patient's mean is subtracted from features, heads also learn from patients who lack one or two sequences.
    """
    vectors, labels = (
        torch.cat(parts) for parts in zip(*(_feature_vectors(plain, part) for part in images), strict=True)
    )
    spread = vectors.std(0) + 1e-6 if plain.layers else torch.ones(vectors.shape[1])
    centre, projection = fit_projection(vectors / spread, labels)
    if plain.layers:
        projection = projection[:, : 2 * max(components)]
    centre, projection = centre * spread, projection / spread[:, None]
    rotated = (vectors - centre) @ projection
    if plain.centred:
        rotated, labels = _add_subsets(rotated, labels, images[0].shape[1] * images[0].shape[2])
    heads = {n: fit_head(rotated, labels, n) for n in components if 2 * n <= projection.shape[1]}
    return replace(plain, centre=centre, projection=projection.contiguous(), heads=heads)


def _add_subsets(rotated: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Add patients with only two or three of their sequences to the components and labels of all patients.

    Parameters
    ----------
    rotated
        Components less each patient's mean, shape (image, 2 * component), patient by patient.
    labels
        Sequence of each image.
    count
        Number of images of a patient.
    """
    classes = int(labels.max()) + 1
    subsets = [chosen for size in range(2, classes) for chosen in combinations(range(classes), size)]
    patients, parts, names = rotated.reshape(-1, count, rotated.shape[1]), [rotated], [labels]
    for number, chosen in enumerate(subsets):
        part = torch.isin(labels[:count], torch.tensor(chosen))
        subset = patients[number :: len(subsets), part]
        parts.append((subset - subset.mean(dim=1, keepdim=True)).flatten(0, 1))
        names.append(labels[:count][part].repeat(len(subset)))
    return torch.cat(parts), torch.cat(names)


def public_accuracy(backbone: Backbone, images: np.ndarray) -> dict[str, float]:
    """Return the share of public images that each public head classifies correctly, by number of components."""
    vectors, labels = _feature_vectors(backbone, images)
    components = torch.view_as_complex(vectors.reshape(len(vectors), -1, 2))
    return {
        str(n): float((head_scores(components, head).argmax(dim=1) == labels).float().mean())
        for n, head in backbone.heads.items()
    }


def read_study(backbone: Backbone, kinds: dict[str, np.ndarray], components: Sequence[int], held_out: int) -> Backbone:
    """Return a backbone with features from all its layers less their mean over a patient's images.

    They are fitted on several kinds of public patients.

    Parameters
    ----------
    backbone
        Backbone with the network and its provenance.
    kinds
        By name, images of public patients as in `learn_readout`.
    components
        Numbers of complex components; one head is fitted for each.
    held_out
        Number of patients of each kind, counted from the first, that no fit uses. The heads are measured on
        them.
    """
    count = sum(4 * width for width in backbone.settings.widths) * backbone.settings.convolutions
    none, identity = torch.zeros(count), torch.eye(count)
    plain = replace(backbone, centre=none, projection=identity, heads={}, layers=True, centred=True)
    logger.info("fitting heads to the features of all layers")
    learnt = learn_readout(plain, [images[held_out:, :, ::EVERY] for images in kinds.values()], components)
    accuracy = {name: public_accuracy(learnt, images[:held_out]) for name, images in kinds.items()}
    logger.info("accuracy on %d held-out patients of each kind, by number of components: %s", held_out, accuracy)
    inherited = {key: value for key, value in backbone.provenance.items() if not key.startswith("held_out")}
    layers = {"layers": {"patients": {name: len(images) - held_out for name, images in kinds.items()}}}
    measured = {"held_out_patients": held_out, "held_out_accuracy": accuracy}
    return replace(learnt, provenance=inherited | layers | measured)


def _feature_vectors(backbone: Backbone, images: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return features, real vectors of shape (image, 2 * component), and classes of all images, patient by patient."""
    parts = [backbone.features(to_kspace(patient.astype(np.float32))) for patient in images]
    pairs = torch.view_as_real(torch.from_numpy(np.stack(parts)))
    patients, classes, slices = pairs.shape[:3]
    labels = torch.arange(classes).repeat_interleave(slices).repeat(patients)
    return pairs.reshape(len(labels), -1), labels
