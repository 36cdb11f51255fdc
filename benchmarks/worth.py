"""Measure the gain of private training when hospitals differ from public data.

    python benchmarks/worth.py

The gain is a share: 0 % is the accuracy of the public head, and 100 % that of the best head without noise. The heads
use the backbone's own features, or statistics of all its layers. Their directions and public heads come from the public
simulation, or from this simulation and brains of random shapes (`shapes`). Settings are chosen on a public consortium
of random shapes, at each epsilon, before any result on the cohorts from other distributions is known. Each of 11
hospitals adds its own noise, all patients take part in every round, and the composition is exact and Gaussian. Writes
worth_selection.csv and worth.csv.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from head_selection import ALL, HOSPITALS, SHAPES, TRAINED, public_head, trained
from torch.nn import functional

from zetadp.base.storage import write_text
from zetadp.mri.fourier import to_kspace
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.mri.whitening import whiten
from zetadp.nn.activations import ConjMish
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.projection import fit_projection, head_on
from zetadp.nn.stacked import stack
from zetadp.nn.unet import inverse_fourier
from zetadp.phantom.cohort import PhantomSettings, simulate_patient
from zetadp.phantom.public import PublicSettings, simulate_public_patient
from zetadp.phantom.shapes import draw_shapes
from zetadp.report.provenance import origin, seeds_shown
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from torch import Tensor

ROOT = Path(__file__).parents[1]
PRIVATE = {"vendor": 3001, "healthy": 3002, "procedural": 3003, "heavy": 3004}
"""Populations of the private cohorts, and their seeds."""
PUBLIC = {
    "atlas": (PublicSettings(seed=1, patients=1500), None),
    "shapes": (PublicSettings(seed=501, patients=1500), draw_shapes),
    "consortium": (PublicSettings(seed=SHAPES, patients=ALL, hospitals=HOSPITALS), draw_shapes),
}
"""Public patients, and the function that draws their brains. Two groups are for training, the last for settings."""
LEARNT_FROM = ("atlas", "shapes")
SLICES = (2, 6, 10, 14, 18)
"""Slices per sequence of patients in a consortium or cohort. Patients for training have two random slices instead."""
OWN = slice(640, 768)
"""Position of the backbone's own features in the statistics of all layers."""
EPSILONS = (1.0, 8.0)
DRAWS = 3
"""Draws of the noise, from seeds 0, 1, ..."""
SHIPPED = (8, {"rounds": 20, "rate": 1.0, "clip": 0.3, "averaged": 0.5})
"""Real components and setting of the default."""
METHODS = {
    "4 components, as shipped": ("atlas", "backbone"),
    "components of the backbone": ("atlas", "backbone"),
    "statistics of all layers": ("atlas", "layers"),
    "statistics of all layers, wider public world": ("both", "layers"),
}
"""Name, public patients and features of each method."""
GRID = {"backbone": (8, 32, 128), "layers": (16, 64, 256)}
"""Real components that are tried."""


def declared(draws: int = DRAWS) -> tuple[str, str]:
    """Return cohorts and seeds: settings are chosen with the first of these draws of the noise."""
    public = [f"public {name}, {made.patients} patients, seed {made.seed}" for name, (made, _) in PUBLIC.items()]
    private = [f"phantom-{name}, {TRAINED} + {ALL - TRAINED} patients, seed {seed}" for name, seed in PRIVATE.items()]
    return "; ".join(public + private), seeds_shown(range(draws))


def private_images(population: str) -> np.ndarray:
    """Return the images of a cohort held apart, shape (patient, sequence, slice, row, column)."""
    settings = PhantomSettings(TRAINED, ALL - TRAINED, PRIVATE[population], population=population)
    found = np.empty((ALL, 4, 20, 32, 32), np.float32)
    for number in range(ALL):
        volume = simulate_patient(settings, number + 1).volume[::-1, :, centre_slices(settings.grid[2], 20)]
        found[number] = resize_area(np.transpose(volume, (3, 2, 1, 0)), 32)
    return found


def public_images(name: str) -> np.ndarray:
    """Return the images of public patients, in half precision."""
    settings, anatomy = PUBLIC[name]
    patients = (simulate_public_patient(settings, n, anatomy=anatomy) for n in range(settings.patients))
    return np.stack([images.astype(np.float16) for images in patients])


@torch.no_grad()
def layer_statistics(backbone: Backbone, images: np.ndarray) -> np.ndarray:
    """Return the mean, and mean and deviation of the modulus, of every channel after every activation.

    Images are of shape (patient, sequence, slice, row, column), statistics of shape (patient, image, 896).
    """
    x = stack(inverse_fourier(torch.from_numpy(whiten(to_kspace(images))).reshape(-1, 1, 32, 32)))
    found = []
    for module in backbone.network.blocks:
        x = module(x)
        if isinstance(module, ConjMish):
            real, imaginary = x.chunk(2, 1)
            modulus = (real * real + imaginary * imaginary).add(1e-6).sqrt()
            found += [x.mean((2, 3)), modulus.mean((2, 3)), modulus.std((2, 3))]
    return np.asarray(torch.cat(found, 1).reshape(len(images), -1, 896))


def statistics(name: str, backbone: Backbone, folder: Path) -> np.ndarray:
    """Return the statistics of some patients' images, from the cache if they are there."""
    computed, simulated = folder / f"statistics-{name}.npy", folder / f"{name}.npy"
    if computed.exists():
        return np.load(computed)
    folder.mkdir(parents=True, exist_ok=True)
    if not simulated.exists():
        np.save(simulated, private_images(name) if name in PRIVATE else public_images(name))
    images = np.load(simulated, mmap_mode="r")
    chosen = np.broadcast_to(np.array(SLICES), (len(images), 4, len(SLICES)))
    if name in LEARNT_FROM:
        chosen = np.random.default_rng(1).integers(20, size=(len(images), 4, 2))
    parts = []
    for first in range(0, len(images), 16):
        block = np.asarray(images[first : first + 16]).astype(np.float32)
        block = np.take_along_axis(block, chosen[first : first + 16, ..., None, None], 2)
        parts.append(layer_statistics(backbone, block))
    np.save(computed, np.concatenate(parts))
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class World:
    """A projection learnt from public patients. Components are ``((x - mean) / deviation - centre) @ projection``."""

    mean: Tensor
    deviation: Tensor
    centre: Tensor
    projection: Tensor
    rotated: Tensor
    labels: Tensor

    @classmethod
    def of(cls, found: list[np.ndarray]) -> World:
        """Learn from the statistics of public patients, arrays of shape (patient, image, number)."""
        x = torch.from_numpy(np.concatenate(found))
        labels = torch.arange(4).repeat_interleave(x.shape[1] // 4).repeat(len(x))
        x = x.flatten(0, 1)
        mean, deviation = x.mean(0), x.std(0) + 1e-6
        x = (x - mean) / deviation
        centre, projection = fit_projection(x, labels)
        return cls(mean, deviation, centre, projection, (x - centre) @ projection, labels)

    def components(self, found: np.ndarray) -> np.ndarray:
        """Return components, the most telling first."""
        return (((torch.from_numpy(found) - self.mean) / self.deviation - self.centre) @ self.projection).numpy()

    @cache  # noqa: B019  (worlds live as long as the program)
    def head(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the best public head on the first real components: matrix (component, class) and bias."""
        return as_real(head_on(self.rotated, self.labels, count // 2))


class Shipped:
    """The shipped backbone's own projection of its features, with the methods of `World`."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    def components(self, found: np.ndarray) -> np.ndarray:
        """Return components, the most telling first."""
        centred = torch.from_numpy(found[..., OWN]) - self.backbone.centre
        return (centred @ self.backbone.projection).numpy()

    def head(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the public head of the backbone."""
        return public_head(self.backbone, count // 2)


def as_real(head: tuple[Tensor, Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Return a complex head as a real matrix, shape (component, class), and its bias."""
    weight, bias = head
    return torch.view_as_real(weight.conj().resolve_conj()).flatten(1).T.numpy().copy(), bias.real.numpy().copy()


def right(head: tuple[np.ndarray, np.ndarray], features: np.ndarray) -> np.ndarray:
    """Return the share of each patient's images that a head classifies correctly, in %."""
    weight, bias = head
    classes = np.arange(4).repeat(features.shape[1] // 4)
    return 100 * ((features[..., : len(weight)] @ weight + bias).argmax(-1) == classes).mean(1)


def after(
    head: tuple[np.ndarray, np.ndarray], components: np.ndarray, epsilon: float, draws: int, **how: float
) -> np.ndarray:
    """Return the result of `right` after private training, for each draw of the noise, shape (draw, patient)."""
    features = np.ascontiguousarray(components[..., : len(head[0])])
    seeds = range(1 if math.isinf(epsilon) else draws)
    heads = [
        trained(features[:TRAINED], head, epsilon=epsilon, random=np.random.default_rng(seed), **how) for seed in seeds
    ]
    return np.stack([right(each, features[TRAINED:]) for each in heads])


def chosen(worlds: dict[tuple[str, str], World | Shipped], found: np.ndarray, draws: int) -> pd.DataFrame:
    """Try every setting on the public consortium, with projections learnt from the atlas only."""
    rows = []
    for features, counts in GRID.items():
        world = worlds["atlas", features]
        components = world.components(found)
        for count, rounds, clip, epsilon in product(counts, (20, 40), (0.03, 0.1, 0.3), EPSILONS):
            how = {"rounds": rounds, "rate": 3.0, "clip": clip, "averaged": 0.5}
            mean = after(world.head(count), components, epsilon, draws, **how).mean()
            rows.append({"features": features, "epsilon": epsilon, "components": count, **how, "mean": mean})
        print(pd.DataFrame(rows).tail(8).to_string(), flush=True)
    return pd.DataFrame(rows)


def standardised(found: np.ndarray) -> np.ndarray:
    """Return statistics, standardised with the mean and the deviation of the training patients."""
    own = found[:TRAINED].reshape(-1, found.shape[-1])
    return (found - own.mean(0)) / (own.std(0) + np.float32(1e-6))


def best_head(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the head of least penalised cross-entropy on all statistics of training patients: no noise, no clipping.

    Of the penalties 0.0003, 0.001 and 0.003 the last gives the highest accuracy on the test patients without an atlas,
    a choice in favour of what the private heads are measured against.
    """
    x = torch.from_numpy(standardised(found)).flatten(0, 1)
    labels = torch.arange(4).repeat_interleave(len(SLICES)).repeat(TRAINED)
    weight, bias = torch.zeros(x.shape[1], 4, requires_grad=True), torch.zeros(4, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=120, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = functional.cross_entropy(x @ weight + bias, labels) + 3e-3 * weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return weight.detach().numpy(), bias.detach().numpy()


def interval(public: np.ndarray, private: np.ndarray, best: np.ndarray) -> tuple[float, float, float]:
    """Return the share of the way from public to best, and its interval of 95 % over test patients, in %."""
    drawn = np.random.default_rng(0).integers(len(public), size=(2000, len(public)))
    drawn[0] = np.arange(len(public))
    low, middle, high = (each[drawn].mean(1) for each in (public, private, best))
    shares = 100 * (middle - low) / (high - low)
    return float(shares[0]), *np.quantile(shares, (0.025, 0.975))


def measured(
    worlds: dict[tuple[str, str], World | Shipped], found: np.ndarray, table: pd.DataFrame, draws: int
) -> list[dict[str, object]]:
    """Return the rows of one cohort."""
    best = right(best_head(found[:TRAINED]), standardised(found)[TRAINED:])
    components = {key: world.components(found) for key, world in worlds.items()}
    rows = []
    for (method, key), epsilon in product(METHODS.items(), EPSILONS):
        own = table[(table["features"] == key[1]) & (table["epsilon"] == epsilon)]
        setting = own.loc[own["mean"].idxmax()]
        how = {name: setting[name] for name in ("rate", "clip", "averaged")} | {"rounds": int(setting["rounds"])}
        count, how = SHIPPED if method.endswith("shipped") else (int(setting["components"]), how)
        head = worlds[key].head(count)
        public = right(head, components[key][TRAINED:])
        noisy = after(head, components[key], epsilon, draws, **how)
        share, low, high = interval(public, noisy.mean(0), best)
        rows.append(
            {"method": method, "epsilon": epsilon, "numbers": 4 * (count + 1), "public alone": public.mean()}
            | {"private": noisy.mean(), "deviation": noisy.mean(1).std(ddof=1)}
            | {"same without noise": after(head, components[key], math.inf, 1, **how).mean()}
            | {"best head without noise": best.mean(), "share": share, "low": low, "high": high}
        )
    return rows


def main() -> None:
    """Choose the settings, measure every method on every cohort and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("resources/worth"))
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    parser.add_argument("--draws", type=int, default=DRAWS, help="draws of the noise")
    given = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone(ROOT / "src/zetadp/data/backbone.safetensors")
    learnt = [statistics(name, backbone, given.cache) for name in LEARNT_FROM]
    worlds = {
        ("atlas", "backbone"): Shipped(backbone),
        ("atlas", "layers"): World.of(learnt[:1]),
        ("both", "layers"): World.of(learnt),
    }
    table = chosen(worlds, statistics("consortium", backbone, given.cache), 1)
    write_text(given.output / "worth_selection.csv", to_csv(table, origin(*declared(given.draws)), float_format="%.4g"))
    rows = []
    for name in PRIVATE:
        rows += [
            {"cohort": name} | row
            for row in measured(worlds, statistics(name, backbone, given.cache), table, given.draws)
        ]
        print(pd.DataFrame(rows).tail(8).to_string(), flush=True)
    write_text(
        given.output / "worth.csv", to_csv(pd.DataFrame(rows), origin(*declared(given.draws)), float_format="%.4g")
    )


if __name__ == "__main__":
    main()
