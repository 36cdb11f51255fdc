"""Populations of the simulated cohort: brains, diseases and scanners, as tables of parameters.

Methods were developed on the standard one. The others show how a method does on patients and scanners that it was not
made for. None is fitted to data: they are only meant to be plausible. The properties of one further population,
`drawn`, follow from the cohort's seed, so that no method can be tuned to it. If the seed follows from something older,
such as the hash of the commit that fixed a method, that cohort is a fair test of the method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom.anatomy import Brain, Tissue, Variability, atlas_coordinates, brain_of_atlas
from zetadp.phantom.lesions import add_tumours, draw_tumour, hollowed, with_no_lesion
from zetadp.phantom.procedural import draw_procedural_brain
from zetadp.phantom.scanners import Scanner, draw_scanner, draw_vendor_scanner
from zetadp.phantom.settings import VoxelGrid

CHARACTER = 2**20
"""Place of the stream that draws them among those of the cohort; all other places are much smaller numbers."""


@dataclass(frozen=True)
class Lesions:
    """The lesions of patients.

    Attributes
    ----------
    share
        Share of the patients who have some.
    count
        Least and largest number.
    radius, oedema
        Least and largest radius, and width of the oedema, in mm; None for those of `draw_tumour`.
    hollowed
        Share of the patients whose lesions are cavities.
    """

    share: float = 0.9
    count: tuple[int, int] = (1, 1)
    radius: tuple[float, float] | None = None
    oedema: tuple[float, float] | None = None
    hollowed: float = 0.0


@dataclass(frozen=True)
class Population:
    """Properties that the patients and scanners of a population share.

    Attributes
    ----------
    without_atlas
        Share of brains from implicit shapes; the others come from the atlas.
    aged
        Whether sulci and ventricles of brains from the atlas widen together, with an age from 18 to 95 years.
    shape
        Variation of shape between patients; None for the usual one of each kind of brain.
    lesions
        Lesions of the patients; None if nobody has any.
    vendor
        Share of centres whose scanners are those of `draw_vendor_scanner`.
    jitter
        Largest relative change of the settings of a centre's protocols.
    noise, bias
        Factors on the scanner's noise and receive field.
    description, reference, licence
        Texts for ``dataset.json``.
    """

    without_atlas: float = 0.0
    aged: bool = False
    shape: Variability | None = None
    lesions: Lesions | None = Lesions()
    vendor: float = 0.0
    jitter: float = 0.0
    noise: float = 1.0
    bias: float = 1.0
    description: str = "Simulated patients with gliomas, in the layout of the Decathlon brain task; not real data"
    reference: str = "zetadp simulated cohort; anatomy from ICBM 152, doi:10.1016/j.neuroimage.2010.07.033"
    licence: str = "simulated; the anatomy is grown from the ICBM 152 maps, see NOTICE"

    def brain(self, rng: np.random.Generator, grid: VoxelGrid) -> Brain:
        """Draw a healthy brain on a grid."""
        if _chance(rng, self.without_atlas):
            return _without_atlas(rng, grid, self.shape)
        return _with_atlas(rng, grid, self.shape, aged=self.aged)

    def tissue(self, rng: np.random.Generator, brain: Brain) -> np.ndarray:
        """Add lesions to a brain, unless the patient has none, and return the fractions (7, n)."""
        if self.lesions is None or rng.random() >= self.lesions.share:
            return with_no_lesion(brain.healthy)
        least, most = self.lesions.count
        tumours = []
        for _ in range(rng.integers(least, most + 1)):
            tumour = draw_tumour(rng, brain.white)
            if self.lesions.radius is not None:
                tumour = replace(tumour, radius=float(rng.uniform(*self.lesions.radius)))
            if self.lesions.oedema is not None:
                tumour = replace(tumour, oedema=float(rng.uniform(*self.lesions.oedema)))
            tumours.append(tumour)
        fractions = add_tumours(brain.healthy, brain.place, tumours)
        return hollowed(fractions) if _chance(rng, self.lesions.hollowed) else fractions

    def scanner(self, rng: np.random.Generator) -> Scanner:
        """Draw a scanner with its protocols."""
        machine = (draw_vendor_scanner if _chance(rng, self.vendor) else draw_scanner)(rng)
        if self.jitter:
            flair, t1, _, t2 = (each.jittered(rng, self.jitter) for each in machine.protocols)
            # The same T1 weighting before and after contrast, as in the other populations.
            machine = replace(machine, protocols=(flair, t1, t1, t2))
        return replace(machine, noise=machine.noise * self.noise, bias=machine.bias * self.bias)


POPULATIONS = {
    "standard": Population(),
    # The same anatomies on scanners of another kind.
    "vendor": Population(vendor=1.0),
    "healthy": Population(
        aged=True,
        lesions=None,
        description="Simulated healthy adults, in the layout of the Decathlon brain task; not real data",
    ),
    # Two to four large gliomas with wide oedema, which are cavities in two patients of five.
    "heavy": Population(lesions=Lesions(count=(2, 4), radius=(14, 27), oedema=(8, 24), hollowed=0.4)),
    "procedural": Population(
        without_atlas=1.0,
        reference="zetadp simulated cohort; anatomy from implicit shapes, no atlas",
        licence="simulated",
    ),
}
"""Populations by their name, `settings.FIXED`."""


def drawn_population(seed: int) -> Population:
    """Return the population that a cohort's seed decides: between the others, or beyond them."""
    rng = stream(seed, Purpose.COHORT, CHARACTER)
    low, high = sorted(rng.uniform(4, 28, 2))
    narrow, wide = sorted(rng.uniform(2, 24, 2))
    return Population(
        without_atlas=float(rng.uniform(0.3, 1.0)),
        shape=Variability(
            rotation=float(rng.uniform(2, 7)),
            scale=float(rng.uniform(0.04, 0.1)),
            shift=float(rng.uniform(1.5, 5)),
            displacements=((60.0, float(rng.uniform(4, 9))), (25.0, float(rng.uniform(2, 4)))),
            ventricles=(float(rng.uniform(-0.3, 0)), float(rng.uniform(0, 0.9))),
        ),
        lesions=Lesions(
            count=(1, int(rng.integers(1, 6))),
            radius=(float(low), float(high)),
            oedema=(float(narrow), float(wide)),
            hollowed=float(rng.uniform(0, 0.5)),
        ),
        vendor=float(rng.uniform(0, 1)),
        jitter=float(rng.uniform(0.02, 0.1)),
        noise=float(rng.uniform(0.7, 2.0)),
        bias=float(rng.uniform(0.7, 2.0)),
        description="Simulated patients of a population that a seed decides, in the layout of the Decathlon; not real",
        reference="zetadp simulated cohort; anatomy from ICBM 152, doi:10.1016/j.neuroimage.2010.07.033, and from "
        "implicit shapes",
    )


def _with_atlas(rng: np.random.Generator, grid: VoxelGrid, shape: Variability | None, *, aged: bool) -> Brain:
    """Draw a brain from the atlas: of any adult age, or ``aged`` by 18 to 95 years."""
    if not aged:
        cut, atrophy, vessels = rng.uniform(0.35, 0.65), rng.uniform(-0.5, 0.9), rng.uniform(0.12, 0.3)
        return brain_of_atlas(atlas_coordinates(rng, grid, shape), grid, cut, atrophy, vessels)
    old = (rng.uniform(18, 95) - 18) / (95 - 18)
    atrophy = float(np.clip(-0.7 + 1.5 * old + rng.normal(0, 0.12), -0.9, 0.95))
    # Fluid in the ventricles grows slowly until sixty, then fast.
    swelling = float(np.clip(-0.3 + 1.1 * old**1.7 + rng.normal(0, 0.08), -0.4, 0.95))
    cut, vessels = rng.uniform(0.35, 0.65), rng.uniform(0.12, 0.3)
    place = atlas_coordinates(rng, grid, Variability(ventricles=(swelling, swelling)))
    return brain_of_atlas(place, grid, cut, atrophy, vessels)


def _without_atlas(rng: np.random.Generator, grid: VoxelGrid, shape: Variability | None) -> Brain:
    """Draw a procedural brain."""
    form = draw_procedural_brain(rng)
    margin = rng.uniform(-0.5, 1.0)
    place = atlas_coordinates(rng, grid, shape or Variability(ventricles=(0.0, 0.0)))
    inside = (form.below_surface(place.reshape(3, -1)) > margin).reshape(grid.shape)
    place = place[:, inside]
    voxel = float(np.mean(grid.voxel))

    def white(at: np.ndarray) -> np.ndarray:
        # Fractions have a meaning below the surface only.
        return np.where(form.below_surface(at) > margin, form.fractions(at, voxel)[Tissue.WHITE], 0)

    return Brain(inside, place, form.fractions(place, voxel), white)


def _chance(rng: np.random.Generator, share: float) -> bool:
    """Return True with the given probability; nothing is drawn for shares of 0 and 1."""
    return share == 1 or (share > 0 and bool(rng.random() < share))
