"""Try changes of the public world: refit public heads on changed patients, and score them on another generator.

    python -m benchmarks.changed_worlds [--cache FOLDER] [--groups 3] [--pull 0.03]

Encoder and components are the shipped ones. For each group of patients, half of whom have a change, a head is refitted
on those with it and on those without it, with a pull to the shipped head. The other changes are drawn for each patient
with a chance of a half, so that every patient serves every comparison. Heads are scored on populations of the cohort's
generator, which nothing is ever fitted on: on its coarse grid, and on a grid of twice as many voxels a side, partly
after a resampling of their volumes that the public simulation does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from zetadp.core.start import shipped_backbone
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.mri.slicing import centre_slices, resize_area
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.settings import IMAGE, SLICE, NetworkSettings
from zetadp.phantom import public, shapes
from zetadp.phantom.anatomy import (
    CENTRE,
    Tissue,
    VoxelGrid,
    atlas_coordinates,
    blur_of,
    healthy_fractions,
    load_atlas,
    sample,
    smooth_field,
)
from zetadp.phantom.cohort import PhantomSettings, simulate_patient
from zetadp.phantom.lesions import add_tumours, draw_lesions, hollowed
from zetadp.phantom.physics import (
    Acquisition,
    GradientEcho,
    PreparedFlair,
    Protocol,
    Tissues,
    nulling_time,
    prepared_nulling_time,
    rician,
)
from zetadp.phantom.procedural import covered
from zetadp.phantom.procedural import inside as inside_share
from zetadp.phantom.scanners import CHANNELS
from zetadp.tasks.brain_sequences import BrainSequences

Changes = frozenset[str]
CHANGES = ("size", "mask", "sulci", "gre", "flairwide", "resample", "flow", "meninges", "flairrim", "flat", "edge")
"""Smaller heads; masks cut tight or loose; sulci as sheets and sharper tissue; more gradient echoes; wider FLAIR;
resolution and sharpening of each sequence by itself; blood that flows; dura and vessels that enhance; bright rims and
fluid in FLAIR; corrected shading; voxels at the edge that are partly brain (`soft`, or `fine`: a finer grid)."""
CHUNKS = tuple(range(9401, 9410))
"""Seeds of the training patients: 60 of the atlas and 30 of random shapes each; random shapes have the seed + 500."""
TODAY = 50
"""What is added to a seed for patients of the unchanged world."""
COMPONENTS = 32
HELD_OUT = {
    "vendor": ("vendor", 8101, 64, False),
    "heavy": ("heavy", 8102, 64, False),
    "procedural": ("procedural", 8103, 64, False),
    "drawn 1": ("drawn", 8201, 64, False),
    "vendor, fine": ("vendor", 8111, 128, False),
    "procedural, fine": ("procedural", 8113, 128, False),
    "drawn 2, fine": ("drawn", 8202, 128, False),
    "vendor, resampled": ("vendor", 8121, 128, True),
    "heavy, resampled": ("heavy", 8122, 128, True),
    "drawn 3, resampled": ("drawn", 8203, 128, True),
    "drawn 4, resampled": ("drawn", 8204, 128, True),
}
"""By name: population, seed, voxels a side, and whether volumes are resampled; 40 patients, of the finer grid 24."""


def changes_of(seed: int, number: int, kind: str) -> Changes:
    """Return the changes that a patient has."""
    draw = np.random.default_rng([77, seed, number, kind == "shapes"])
    chosen = {change for change in CHANGES if draw.random() < 0.5}
    if "edge" in chosen:
        chosen.remove("edge")
        chosen.add("fine" if draw.random() < 0.4 else "soft")
    return frozenset(chosen)


def enlarged(place: np.ndarray, factor: float) -> np.ndarray:
    """Scale atlas coordinates about the middle of the head, so that it looks smaller; half as much along z."""
    if factor == 1:
        return place
    middle = np.array(CENTRE, np.float32).reshape(3, 1, 1, 1)
    plane = (place[:2] - middle[:2]) * np.float32(factor) + middle[:2]
    return np.concatenate([plane, (place[2:] - middle[2:]) * np.float32(1 + (factor - 1) / 2) + middle[2:]])


def factor_of(draw: np.random.Generator, changes: Changes) -> float:
    """Draw by how much a head is smaller."""
    return float(np.exp(draw.uniform(-0.08, 0.28))) if "size" in changes else 1.0


def of_atlas(draw: np.random.Generator, grid: VoxelGrid, changes: Changes) -> tuple[np.ndarray, np.ndarray]:
    """Draw a brain as `zetadp.phantom.public.draw_anatomy`, with changes."""
    atlas = load_atlas(blur_of(grid.voxel))
    place = enlarged(atlas_coordinates(draw, grid, public.SHAPES), factor_of(draw, changes))
    place[2] += np.float32(draw.uniform(-public.SLAB, public.SLAB))
    cut = draw.uniform(0.25, 0.75)
    if "mask" in changes:
        cut = draw.uniform(0.1, 0.97)
    inside = sample(atlas.brain, atlas, place) > cut
    if "mask" in changes and draw.random() < 0.2:
        tight = ndimage.binary_erosion(inside)
        inside = tight if tight.any((0, 1)).all() else inside
    place = place[:, inside]
    healthy = healthy_fractions(atlas, place, draw.uniform(-0.6, 0.95), draw.uniform(0.05, 0.4))
    if "sulci" in changes and draw.random() < 0.7:
        healthy = _folded(draw, grid, inside, healthy)
    tumours = draw_lesions(draw, lambda at: sample(atlas.white, atlas, at))
    fractions = add_tumours(healthy, place, tumours)
    return inside, hollowed(fractions) if tumours and draw.random() < 0.15 else fractions


def _folded(draw: np.random.Generator, grid: VoxelGrid, inside: np.ndarray, healthy: np.ndarray) -> np.ndarray:
    """Sharpen the tissue and add sulci: sheets of fluid with a ribbon of grey matter, as random shapes have."""
    healthy = np.power(np.clip(healthy, 0, 1), draw.uniform(1.0, 3.0))
    healthy = healthy / np.maximum(healthy.sum(0), 1e-6)
    depth = ndimage.distance_transform_edt(inside, sampling=grid.voxel)
    voxel, reach = grid.voxel[0], draw.uniform(8, 30)
    folds = shapes._zeros(draw, grid, draw.uniform(9, 22))
    thin, ribbon = draw.uniform(0.2, 1.2), draw.uniform(2, 4)
    present = inside_share(reach - depth, 6.0)
    fluid = (present * covered(folds, thin, voxel))[inside].astype(np.float32)
    beside = np.clip((present * covered(folds, thin + ribbon, voxel))[inside].astype(np.float32) - fluid, 0, 1)
    csf, grey, white, blood = healthy
    grey, white, kept, vessels = grey + white * beside, white * (1 - beside), 1 - fluid, draw.uniform(0.05, 0.4)
    return np.stack([csf * kept + fluid * (1 - vessels), grey * kept, white * kept, blood * kept + fluid * vessels])


def of_shapes(draw: np.random.Generator, grid: VoxelGrid, changes: Changes) -> tuple[np.ndarray, np.ndarray]:
    """Draw a brain as `zetadp.phantom.shapes.draw_shapes`, with changes."""
    while True:
        with _smaller(factor_of(draw, changes)):
            inside, fractions = shapes._brain(draw, grid)
        if inside.any(axis=(0, 1)).all():
            break
    if "mask" in changes and draw.random() < 0.2:
        tight = ndimage.binary_erosion(inside)
        if tight.any((0, 1)).all():
            inside, fractions = tight, fractions[:, tight[inside]]
    return inside, fractions


@contextmanager
def _smaller(factor: float) -> Iterator[None]:
    """Scale the heads of random shapes."""
    usual = vars(shapes)["atlas_coordinates"]
    vars(shapes)["atlas_coordinates"] = lambda *given: enlarged(usual(*given), factor)
    try:
        yield
    finally:
        vars(shapes)["atlas_coordinates"] = usual


def t1_weighted(draw: np.random.Generator, tissues: Tissues, changes: Changes) -> Acquisition:
    """Draw a T1 weighting: with more gradient echoes, with and without inversion, if that is changed."""
    if "gre" not in changes or draw.random() < 0.5:
        return public.draw_t1_weighted(draw, tissues)
    if draw.random() < 0.5:
        tr, te = draw.uniform(1400, 2600), draw.uniform(1.5, 5)
        return Protocol(tr=tr, te=te, ti=nulling_time(tissues.t1[Tissue.GREY], tr) * draw.uniform(1.05, 2.2))
    tr = draw.uniform(4, 40)
    ernst = np.rad2deg(np.arccos(np.exp(-tr / tissues.t1[Tissue.WHITE])))
    return GradientEcho(tr=tr, te=draw.uniform(1.5, 10), flip=float(np.clip(ernst * draw.uniform(1.2, 4.5), 5, 80)))


def flair(draw: np.random.Generator, tissues: Tissues, changes: Changes) -> Acquisition:
    """Draw a FLAIR: of shorter echoes, or after T2 preparation, if that is changed."""
    if "flairwide" not in changes or draw.random() < 0.4:
        return public.draw_flair(draw, tissues)
    tr = draw.uniform(4000, 12000)
    if draw.random() < 0.5:
        prepared = draw.uniform(60, 180)
        te, ti = draw.uniform(20, 120), prepared_nulling_time(tissues.t1[0], tissues.t2[0], tr, prepared)
        return PreparedFlair(tr=tr, te=te, ti=ti * draw.uniform(0.85, 1.1), preparation=prepared)
    ti = nulling_time(tissues.t1[Tissue.CSF], tr) * draw.uniform(0.85, 1.1)
    return Protocol(tr=tr, ti=ti, te=draw.uniform(20, 200))


def signals(draw: np.random.Generator, tissues: Tissues, changes: Changes) -> np.ndarray:
    """Draw protocols, and return the signal (sequence, tissue) under them."""
    if changes & {"gre", "flairwide"}:
        before = t1_weighted(draw, tissues, changes)
        after = before if draw.random() < 0.6 else t1_weighted(draw, tissues, changes)
        protocols = [flair(draw, tissues, changes), before, after, public.draw_t2_weighted(draw)]
        present = [tissues.after_contrast() if name == "t1gd" else tissues for name in CHANNELS]
        found = np.stack([each.signal(of) for each, of in zip(protocols, present, strict=True)]).astype(np.float32)
    else:
        found = public.draw_signals(draw, tissues)
    if "flow" in changes:
        for index in range(len(CHANNELS)):
            dark = index in (0, 3)  # spin echoes lose the signal of blood that flows
            found[index, Tissue.BLOOD] *= draw.uniform(0, 1) if dark else np.exp(draw.normal(0, 0.5))
    return found


def simulate(seed: int, number: int, kind: str, changes: Changes) -> np.ndarray:
    """Return the images (sequence, slice, row, column) of a public patient with changes."""
    draw = np.random.Generator(np.random.PCG64([seed, number]))
    side = 128 if "fine" in changes else 64
    grid, finer = VoxelGrid((side, side, 24)), side / 64
    inside, fractions = (of_atlas if kind == "atlas" else of_shapes)(draw, grid, changes)
    tissues = public.draw_public_tissues(draw, public.draw_field_strength(draw))
    levels = signals(draw, tissues, changes)
    thickness, sharpness = draw.uniform(0, 2.0), draw.uniform(0, 0.7) * finer
    flat = "flat" in changes and draw.random() < 0.5
    partial: np.ndarray | float = 1.0
    if "soft" in changes and draw.random() < 0.7:
        width = (draw.uniform(0.3, 0.7), draw.uniform(0.3, 0.7), 0.3)
        partial = ndimage.gaussian_filter(inside.astype(np.float32), width)
    surface = patches = np.zeros(inside.sum(), np.float32)
    if changes & {"meninges", "flairrim"}:
        surface = (inside & ~ndimage.binary_erosion(inside))[inside].astype(np.float32)
        patches = 1 / (1 + np.exp(-2 * smooth_field(draw, grid, 50.0)[inside]))
    dura, of_dura = np.zeros(len(surface), np.float32), np.zeros(4, np.float32)
    if "meninges" in changes and draw.random() < 0.6:
        dura = (draw.uniform(0, 0.5) * surface * patches).astype(np.float32)
        fractions = fractions * (1 - dura)
        of_dura = levels[:, Tissue.GREY] * draw.uniform(0.5, 1.0, 4).astype(np.float32)
        of_dura[2] = levels[2, Tissue.BLOOD] * draw.uniform(0.6, 1.4)
    if "meninges" in changes:
        levels[2, Tissue.BLOOD] *= draw.uniform(0.8, 2.0)
    images = np.empty((4, 20, 32, 32), np.float32)
    for index in range(4):
        signal = levels[index] @ fractions + dura * of_dura[index]
        if index == 0 and "flairrim" in changes:
            grey = np.abs(levels[0, Tissue.GREY])
            if draw.random() < 0.5:
                signal = np.abs(signal) + grey * surface * patches * draw.uniform(0, 1.2)
            if draw.random() < 0.4:  # fluid that pulsates is not nulled
                signal = np.abs(signal) + grey * fractions[Tissue.CSF] * draw.uniform(0, 0.8)
        shown = np.zeros(grid.shape, np.float32)
        if flat:
            field = smooth_field(draw, grid, 90.0)[inside]
            signal = signal * np.exp(draw.uniform(0, 0.06) * field)
            shown[inside] = signal / np.abs(signal).mean()
        else:
            shown[inside] = public._shaded(draw, signal.astype(np.float32), inside, grid)
        mask = inside | public._add_remnants(draw, shown, inside, grid)
        if "resample" in changes:
            shown = _own_resolution(draw, np.abs(shown), finer)
        else:
            shown = public._blurred(draw, shown, sharpness, thickness)
        noise = float(np.exp(draw.uniform(np.log(0.004), np.log(0.12)))) * finer
        noisy = rician(shown * partial, noise, draw)
        shown = np.where(mask, noisy, 0) if draw.random() < 0.9 else noisy
        shown = public._clipped(draw, shown, mask)
        images[index] = as_slices(shown)
    return images


def _own_resolution(draw: np.random.Generator, shown: np.ndarray, finer: float) -> np.ndarray:
    """Blur and sharpen one sequence by itself, as its resolution, slices and reconstruction do."""
    if draw.random() < 0.75:
        widths = draw.uniform(0, 0.8) * finer * np.ones(3)
        widths[:2] *= draw.uniform(0.6, 1.4, 2)
        widths[2] = draw.uniform(0, 2.5)
        if draw.random() < 0.2:
            widths[0] += draw.uniform(0, 0.7) * finer
        shown = ndimage.gaussian_filter(shown, widths, truncate=3.0)
    if draw.random() < 0.3:
        fine = shown - ndimage.gaussian_filter(shown, (0.8 * finer, 0.8 * finer, 0))
        shown = np.maximum(shown + draw.uniform(0, 1.0) * fine, 0)
    return shown


def as_slices(volume: np.ndarray) -> np.ndarray:
    """Return the centre slices of a volume (x, y, z) of 24 slices as networks see them."""
    return resize_area(np.transpose(volume[::-1, :, centre_slices(24, 20)], (2, 1, 0)), 32)


def held_out(name: str, number: int) -> np.ndarray:
    """Return the images of a patient of another generator."""
    population, seed, side, moved = HELD_OUT[name]
    settings = PhantomSettings(
        seed=seed, population=population, train_patients=100, test_patients=200, grid=(side, side, 24)
    )
    volume = simulate_patient(settings, number + 1).astype(np.float32)
    if moved:
        volume = _resampled(volume, np.random.default_rng([seed, number]))
    return np.stack([as_slices(volume[..., index]) for index in range(4)])


def _resampled(volume: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Average each sequence over voxels that are long in one direction, turn and shrink all, and cut a new mask."""
    zoom, angle = draw.uniform(0.95, 1.3), np.deg2rad(draw.uniform(-8, 8))
    matrix = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = (np.array(volume.shape[:2]) - 1) / 2
    offset = middle - matrix @ (middle + draw.uniform(-5, 5, 2))

    def moved(values: np.ndarray, order: Callable[[], int]) -> np.ndarray:
        planes = (values[..., z] for z in range(values.shape[2]))
        return np.stack([ndimage.affine_transform(each, matrix, offset, order=order()) for each in planes], -1)

    mask = moved((volume[..., 0] > 0).astype(np.float32), lambda: 1) > draw.uniform(0.2, 0.8)
    if draw.random() < 0.2:
        tight = ndimage.binary_erosion(mask)
        mask = tight if tight.any((0, 1)).all() else mask
    found = np.empty(volume.shape, np.float32)
    for index in range(4):
        values, long = volume[..., index], draw.integers(4)
        if long:
            values = ndimage.uniform_filter1d(values, int(draw.integers(2, 6)), axis=(2, 0, 1)[long - 1])
        found[..., index] = np.where(mask, np.maximum(moved(values, lambda: 1 if draw.random() < 0.7 else 3), 0), 0)
    return found


class Refits:
    """Components of patients under one shipped backbone, and heads refitted on them."""

    def __init__(self, backbone: Backbone, cache: Path, pull: float) -> None:
        self.backbone, self.cache, self.pull = backbone, cache, pull
        weight, bias = backbone.heads[COMPONENTS]
        self.shipped = torch.view_as_real(weight.conj().resolve_conj()).flatten(1), bias.real

    def components(self, name: str, images: Callable[[int], np.ndarray], count: int) -> Tensor:
        """Return the components (patient, image, number) of patients, computed once."""
        file = self.cache / f"{self.backbone.centred}-{name}.npy"
        if not file.exists():
            self.cache.mkdir(parents=True, exist_ok=True)
            rows = [self.backbone.features(whiten(to_kspace(images(number)))) for number in range(count)]
            np.save(file, np.stack(rows).reshape(count, -1, self.backbone.components).view(np.float32))
        return torch.from_numpy(np.load(file))[..., : 2 * COMPONENTS]

    def refitted(self, patients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the head of least cross-entropy on patients, with a pull to the shipped one."""
        x, labels = patients.flatten(0, 1), _labels(patients).repeat(len(patients))
        weight, bias = (each.clone().requires_grad_() for each in self.shipped)
        optimiser = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = functional.cross_entropy(x @ weight.T + bias, labels)
            loss = loss + self.pull * (weight - self.shipped[0]).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimiser.step(closure)  # type: ignore[no-untyped-call]
        return weight.detach(), bias.detach()


def _labels(patients: Tensor) -> Tensor:
    return torch.arange(4).repeat_interleave(patients.shape[1] // 4)


def accuracies(head: tuple[Tensor, Tensor], held: dict[str, Tensor]) -> dict[tuple[str, str], float]:
    """Return the share of correct images in %, by decision and by grid: coarse, or fine."""
    found: dict[tuple[str, str], list[float]] = {}
    for name, patients in held.items():
        scores, labels = patients @ head[0].T + head[1], _labels(patients)
        for decision in (IMAGE, SLICE):
            task = BrainSequences(slices=len(labels) // 4, decision=decision)
            told = task.probabilities(scores.flatten(0, 1)).argmax(-1).reshape(len(scores), -1)
            grid = "fine" if "," in name else "coarse"
            found.setdefault((grid, decision), []).append(100 * float((told == labels).float().mean()))
    return {key: float(np.mean(values)) for key, values in found.items()}


def main() -> None:
    """Print the effect of each change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("resources/changed_worlds"))
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--pull", type=float, default=0.03)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for domain in ("study", "layers"):
        settings = NetworkSettings("head", domain, components=COMPONENTS, start="public")
        refits = Refits(load_backbone(shipped_backbone(settings)), given.cache, given.pull)
        sizes = {name: (40, 2) if side == 64 else (24, 4) for name, (_, _, side, _) in HELD_OUT.items()}
        held = {}
        for name, (count, step) in sizes.items():

            def of_another(n: int, of: str = name, s: int = step) -> np.ndarray:
                return held_out(of, n)[:, ::s]

            held[name] = refits.components(name, of_another, count)
        pools: dict[str, list[tuple[Tensor, list[Changes]]]] = {"changed": [], "today": [], "soft": []}
        for seed in CHUNKS:
            for name, pool in pools.items():
                parts, had = [], []
                for kind, count, apart in (("atlas", 60, 0), ("shapes", 30, 500)):
                    own = seed + apart + (0 if name == "changed" else TODAY)
                    every = {"changed": None, "today": frozenset(), "soft": frozenset({"soft"})}[name]
                    mine = [changes_of(own, n, kind) if every is None else every for n in range(count)]

                    def images(n: int, s: int = own, k: str = kind, m: list[Changes] = mine) -> np.ndarray:
                        return simulate(s, n, k, m[n])[:, 1::8]

                    parts.append(refits.components(f"{name}-{kind}-{own}", images, count))
                    had += mine
                pool.append((torch.cat(parts), had))
        print(domain, "shipped", accuracies(refits.shipped, held), flush=True)
        found: dict[str, list[dict[tuple[str, str], float]]] = {}
        for group in range(given.groups):
            joined = {
                name: torch.cat([part for part, _ in pool[group :: given.groups]]) for name, pool in pools.items()
            }
            had = [each for _, part in pools["changed"][group :: given.groups] for each in part]
            for name, patients in joined.items():
                found.setdefault(name, []).append(accuracies(refits.refitted(patients), held))
            for change in CHANGES:
                names = {"soft", "fine"} if change == "edge" else {change}
                has = torch.tensor([bool(each & names) for each in had])
                for word, chosen in (("with", has), ("without", ~has)):
                    head = refits.refitted(joined["changed"][chosen])
                    found.setdefault(f"{word} {change}", []).append(accuracies(head, held))
        pairs = [(f"with {change}", f"without {change}") for change in CHANGES]
        for one, other in (("changed", "today"), ("soft", "today"), *pairs):
            for key in found[one][0]:
                gain = np.array([a[key] - b[key] for a, b in zip(found[one], found[other], strict=True)])
                print(domain, one, "less", other, key, f"{gain.mean():+.2f} +- {gain.std(ddof=1):.2f}", flush=True)


if __name__ == "__main__":
    main()
