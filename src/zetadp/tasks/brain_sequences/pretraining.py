"""Training the public backbone on simulated patients: ordinary training, without private data or noise."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from zetadp.base.randomness import Purpose, stream
from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.transfer import to_device
from zetadp.base.validation import UserError
from zetadp.mri.augmentation import AugmentationSettings, augment
from zetadp.mri.fourier import to_kspace
from zetadp.mri.whitening import whiten
from zetadp.nn.backbone import Backbone
from zetadp.nn.models import ConvolutionalClassifier, NetworkSettings, build
from zetadp.nn.settings import BackboneTraining
from zetadp.tasks.brain_sequences.readout import learn_readout, public_accuracy

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PretrainingSettings(BackboneTraining):
    """Settings of the backbone's training.

    Attributes
    ----------
    augmentation
        How images are varied.
    """

    augmentation: AugmentationSettings = field(default_factory=AugmentationSettings)


class PublicImages(NamedTuple):
    """Magnitude images of public patients, in any unit.

    Attributes
    ----------
    images, watched
        Images for training, and held-out images, shape (patient, sequence, slice, row, column).
    sequences
        Name of each sequence.
    """

    images: np.ndarray
    watched: np.ndarray
    sequences: Sequence[str]


def pretrain(
    network: NetworkSettings,
    settings: PretrainingSettings,
    public: PublicImages,
    *,
    checkpoint: Path,
    device: torch.device | str = "cpu",
) -> Backbone:
    """Train a network on public images, from the start or from its checkpoint, and fit a readout of its features.

    Parameters
    ----------
    network
        A complex network on k-space with a pooled head.
    settings
        How it is trained.
    public
        Images for training, and held-out ones.
    checkpoint
        Checkpoint of an interrupted run. The caller removes it after writing the backbone.
    device
        Device for the training.

    Raises
    ------
    UserError
        If the batch is no multiple of the number of sequences, or the network has no pooled complex head.
    """
    images = public.images
    model = _new(network, settings, images.shape)
    model.to(device)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    digest = _digest(network, settings, images)
    start = _resume(checkpoint, model, optimiser, digest)
    begun = saved = reported = time.monotonic()
    running = torch.full((), math.nan, dtype=torch.float64, device=device)
    for step in range(start, settings.steps):
        running = _step(model, optimiser, settings, images, step, running)
        now = time.monotonic()
        if now - reported > 30 or step + 1 == settings.steps:
            reported = now
            left = (now - begun) / (step + 1 - start) * (settings.steps - step - 1)
            logger.info("step %d of %d, loss %.3f, %.0f s left", step + 1, settings.steps, float(running), left)
        if now - saved > settings.checkpoint_seconds:
            saved = now
            _keep(checkpoint, step + 1, digest, model, optimiser)
    _keep(checkpoint, settings.steps, digest, model, optimiser)
    model.eval().requires_grad_(requires_grad=False)
    return _with_features(model, network, settings, public, digest)


def _step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    settings: PretrainingSettings,
    images: np.ndarray,
    step: int,
    running: Tensor,
) -> Tensor:
    """Take one step, and return the running mean of the loss. It stays on the device: to read it would block a GPU."""
    for group in optimiser.param_groups:
        group["lr"] = settings.rate(step)
    inputs, labels = (to_device(torch.from_numpy(part), running.device) for part in draw_batch(images, settings, step))
    loss = functional.cross_entropy(model(inputs.unsqueeze(1)), labels, label_smoothing=settings.smoothing)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    latest = loss.detach().double()
    return torch.where(running.isnan(), latest, 0.98 * running + 0.02 * latest)


def draw_batch(images: np.ndarray, settings: PretrainingSettings, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the whitened k-space of a step's images, shape (image, row, column), and their classes.

    For given images and settings, a batch depends only on the step, so that an interrupted run can continue.
    """
    random = stream(settings.seed, Purpose.PRETRAINING, step)
    classes = images.shape[1]
    patients = random.integers(len(images), size=settings.batch // classes)
    slices = random.integers(images.shape[2], size=(len(patients), classes))
    chosen = images[patients[:, None], np.arange(classes), slices].astype(np.float32)
    varied = augment(chosen.reshape(-1, *images.shape[3:]), settings.augmentation, random)
    return whiten(to_kspace(varied)), np.tile(np.arange(classes), len(patients))


def _new(network: NetworkSettings, settings: PretrainingSettings, shape: tuple[int, ...]) -> ConvolutionalClassifier:
    """Return the network with newly drawn weights."""
    if settings.batch % shape[1]:
        raise UserError(f"Expected pretraining.batch to be a multiple of {shape[1]} sequences, found {settings.batch}.")
    model = build(network, shape[1], shape[-1], stream(settings.seed, Purpose.WEIGHTS))
    if not isinstance(model, ConvolutionalClassifier) or not (model.complex and model.pooled):
        raise UserError("Expected a network of family complex with head pooled for the backbone.")
    return model


def _with_features(
    model: ConvolutionalClassifier,
    network: NetworkSettings,
    settings: PretrainingSettings,
    public: PublicImages,
    digest: str,
) -> Backbone:
    """Fit centre, projection and heads on half of the public patients, and measure on the held-out ones."""
    images, watched, sequences = public
    count = network.widths[-1]
    shown = json.loads(json.dumps({"network": network.to_json(), "pretraining": asdict(settings)}))
    shown |= {"patients": len(images), "digest": digest}
    plain = Backbone(
        network=model,
        settings=network,
        sequences=tuple(sequences),
        size=images.shape[-1],
        centre=torch.zeros(2 * count),
        projection=torch.eye(2 * count),
        heads={},
        provenance=shown,
    )
    logger.info("fitting heads to the features")
    learnt = learn_readout(plain, [images[::2]], settings.components)
    accuracy = public_accuracy(learnt, watched)
    logger.info("accuracy on %d held-out public patients, by number of components: %s", len(watched), accuracy)
    return replace(learnt, provenance={**shown, "held_out_patients": len(watched), "held_out_accuracy": accuracy})


def _digest(network: NetworkSettings, settings: PretrainingSettings, images: np.ndarray) -> str:
    """Return a hash of everything that the backbone depends on."""
    relevant = {key: value for key, value in asdict(settings).items() if key != "checkpoint_seconds"}
    digest = hashlib.sha256(json.dumps([network.to_json(), relevant, images.shape], sort_keys=True).encode())
    digest.update(np.ascontiguousarray(images).data)
    return digest.hexdigest()


def _keep(path: Path, done: int, digest: str, model: ConvolutionalClassifier, optimiser: torch.optim.Optimizer) -> None:
    """Write the checkpoint."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, moments in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value for name, value in moments.items()}
    save_tensors(
        path, {name: value.detach().cpu() for name, value in tensors.items()}, {"step": done, "digest": digest}
    )


def _resume(path: Path, model: ConvolutionalClassifier, optimiser: torch.optim.Optimizer, digest: str) -> int:
    """Load a checkpoint of this run if there is one; return the number of steps done."""
    if not path.exists():
        return 0
    tensors, content = load_tensors(path)
    if content["digest"] != digest:
        logger.info("the checkpoint %s belongs to another run; starting from the first step", path)
        return 0
    own = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    model.load_state_dict(own)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, number, moment = name.split(".")
            state.setdefault(int(number), {})[moment] = value
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
    logger.info("continuing after step %d", content["step"])
    return int(content["step"])
