"""Accuracy of two simple models on the simulated cohort of an experiment: how much of the task needs no network.

Softmax regression on (a) the logarithm of the magnitude of whitened k-space and (b) the sorted, standardised
intensities of each image. The first ignores all phase, the second all space. Training patients fit the model, a third
of them choose the penalty, test patients give the accuracy, of each image by itself and with the images of a slice
classified together, one of each sequence; chance is 25 %.

    python benchmarks/difficulty.py                      the cohort of the default experiment
    python benchmarks/difficulty.py --scenario longer    another one
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from scenarios import configuration

from zetadp.mri.fourier import to_kspace
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.mri.whitening import whiten
from zetadp.nn.settings import SLICE
from zetadp.phantom.cohort import PhantomSettings, simulate_patient
from zetadp.phantom.scanners import CHANNELS
from zetadp.report.provenance import cohort_shown
from zetadp.tasks.brain_sequences import BrainSequences

SLICES = 20
SIZE = 32
PENALTIES = (1.0, 0.1, 0.01, 0.001)


@dataclass(frozen=True)
class Result:
    """Accuracy of each image by itself and of the images of a slice together, penalty, and shares of predictions.

    ``confusion`` has true classes as rows, each image by itself.
    """

    accuracy: float
    together: float
    penalty: float
    confusion: np.ndarray


def patient_images(settings: PhantomSettings, number: int) -> np.ndarray:
    """Return the images (sequence, slice, row, column) of one patient."""
    volume = simulate_patient(settings, number).volume
    slices = volume[:, :, centre_slices(volume.shape[2], SLICES)]
    return resize_area(slices.transpose(3, 2, 0, 1), SIZE)


def log_magnitude(images: np.ndarray) -> np.ndarray:
    """Return the logarithm of the magnitude of whitened k-space: half of it, as the other half repeats it."""
    kspace = whiten(to_kspace(images))[..., : SIZE // 2 + 1]
    return np.log(np.abs(kspace) + 1e-3).reshape(*images.shape[:3], -1)


def sorted_intensities(images: np.ndarray) -> np.ndarray:
    """Return the intensities of each image in rising order, with mean 0 and variance 1."""
    values = np.sort(images.reshape(*images.shape[:3], -1), axis=-1)
    return (values - values.mean(axis=-1, keepdims=True)) / values.std(axis=-1, keepdims=True)


def fit(x: torch.Tensor, y: torch.Tensor, penalty: float) -> torch.Tensor:
    """Fit softmax regression by full-batch L-BFGS; return weights (feature + 1, class), the bias in the last row."""
    weights = torch.zeros(x.shape[1] + 1, len(CHANNELS), requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=80, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weights[:-1] + weights[-1], y)
        value = value + penalty / 2 * weights[:-1].square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return weights.detach()


def evaluate(features: np.ndarray, train_patients: int) -> Result:
    """Choose the penalty on a third of the training patients, fit on all of them, and test on the others."""
    mean = features[:train_patients].mean(axis=(0, 1, 2))
    scale = features[:train_patients].std(axis=(0, 1, 2)) + 1e-6
    x = torch.from_numpy(((features - mean) / scale).astype(np.float32))
    y = torch.arange(len(CHANNELS))[None, :, None].expand(x.shape[:3])

    def part(patients: slice) -> tuple[torch.Tensor, torch.Tensor]:
        return x[patients].flatten(0, 2), y[patients].flatten()

    def scores(weights: torch.Tensor, patients: slice) -> torch.Tensor:
        return part(patients)[0] @ weights[:-1] + weights[-1]

    held_out = slice(2 * train_patients // 3, train_patients)
    fitted = {penalty: fit(*part(slice(0, held_out.start)), penalty) for penalty in PENALTIES}
    hits = {p: (scores(w, held_out).argmax(dim=1) == part(held_out)[1]).sum().item() for p, w in fitted.items()}
    penalty = max(hits, key=lambda each: hits[each])

    test = slice(train_patients, len(x))
    found, truth = scores(fit(*part(slice(0, train_patients)), penalty), test), part(test)[1]
    predicted = found.argmax(dim=1)
    confusion = np.zeros((len(CHANNELS),) * 2)
    np.add.at(confusion, (truth.numpy(), predicted.numpy()), 1)
    accuracy = float((predicted == truth).float().mean())
    together = float(BrainSequences(slices=SLICES, decision=SLICE).scores(found, truth).mean())
    return Result(accuracy, together, penalty, confusion / confusion.sum(axis=1, keepdims=True))


def main() -> None:
    """Simulate a cohort and print the accuracy of both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", help="name of a file in workflow/scenarios (default: config.yaml)")
    cohort = configuration(parser.parse_args().scenario)["cohort"]
    patients = {name: cohort[name] for name in ("train_patients", "test_patients")}
    settings = PhantomSettings(**patients, **cohort["simulated"])
    print(cohort_shown(cohort))
    images = np.stack([patient_images(settings, number) for number in range(1, settings.patients + 1)])
    for name, features in (("log magnitude", log_magnitude), ("sorted intensities", sorted_intensities)):
        result = evaluate(features(images), settings.train_patients)
        print(f"{name}: test accuracy {result.accuracy:.4f}, {result.together:.4f} with the images of a slice together")
        print(f"penalty {result.penalty:g}; true class by row, each image by itself:")
        for sequence, row in zip(CHANNELS, result.confusion, strict=True):
            print(f"  {sequence:>5}  " + "  ".join(f"{share:.2f}" for share in row))


if __name__ == "__main__":
    main()
