"""A population whose properties are drawn from the cohort's seed, so that no method can be tuned to it.

Anatomy, lesions and scanners lie between those of the other populations, or beyond them. If the seed follows from
something older, such as the hash of the commit that fixed a method, the cohort is a fair test of this method.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from zetadp.base.randomness import Purpose, stream
from zetadp.phantom.deformation import Variability
from zetadp.phantom.grid import VoxelGrid
from zetadp.phantom.lesions import add_tumours, draw_tumour, hollowed, with_no_lesion
from zetadp.phantom.populations import Brain, Population, draw_brain_without_atlas, draw_patient_brain
from zetadp.phantom.scanners import Scanner, draw_scanner, draw_vendor_scanner

CHARACTER = 2**20
"""Place of this stream among those of the cohort; all other places are much smaller numbers."""


@dataclass(frozen=True)
class Character:
    """Properties that all patients and centres of a population share.

    Attributes
    ----------
    without_atlas
        Share of brains from implicit shapes; the others come from the atlas.
    shape
        Variation of shape between patients.
    lesions
        Largest number of lesions of a patient.
    radius, oedema
        Lowest and highest radius of a lesion, and width of its oedema, in mm.
    hollowed
        Share of the patients with lesions whose lesions are cavities.
    vendor
        Share of centres whose scanners are those of `draw_vendor_scanner`.
    jitter
        Largest relative change of the settings of a centre's protocols.
    noise, bias
        Factors on the scanner's noise and receive field.
    """

    without_atlas: float
    shape: Variability
    lesions: int
    radius: tuple[float, float]
    oedema: tuple[float, float]
    hollowed: float
    vendor: float
    jitter: float
    noise: float
    bias: float


def draw_character(rng: np.random.Generator) -> Character:
    """Draw the shared properties of a population."""
    low, high = sorted(rng.uniform(4, 28, 2))
    narrow, wide = sorted(rng.uniform(2, 24, 2))
    return Character(
        without_atlas=float(rng.uniform(0.3, 1.0)),
        shape=Variability(
            rotation=float(rng.uniform(2, 7)),
            scale=float(rng.uniform(0.04, 0.1)),
            shift=float(rng.uniform(1.5, 5)),
            displacements=((60.0, float(rng.uniform(4, 9))), (25.0, float(rng.uniform(2, 4)))),
            ventricles=(float(rng.uniform(-0.3, 0)), float(rng.uniform(0, 0.9))),
        ),
        lesions=int(rng.integers(1, 6)),
        radius=(float(low), float(high)),
        oedema=(float(narrow), float(wide)),
        hollowed=float(rng.uniform(0, 0.5)),
        vendor=float(rng.uniform(0, 1)),
        jitter=float(rng.uniform(0.02, 0.1)),
        noise=float(rng.uniform(0.7, 2.0)),
        bias=float(rng.uniform(0.7, 2.0)),
    )


def drawn_population(seed: int) -> Population:
    """Return the population of a cohort with this seed."""
    own = draw_character(stream(seed, Purpose.COHORT, CHARACTER))

    def brain(rng: np.random.Generator, grid: VoxelGrid) -> Brain:
        draw = draw_brain_without_atlas if rng.random() < own.without_atlas else draw_patient_brain
        return draw(rng, grid, own.shape)

    def tissue(rng: np.random.Generator, brain: Brain, probability: float) -> np.ndarray:
        if rng.random() >= probability:
            return with_no_lesion(brain.healthy)
        found = [
            replace(
                draw_tumour(rng, brain.white),
                radius=float(rng.uniform(*own.radius)),
                oedema=float(rng.uniform(*own.oedema)),
            )
            for _ in range(rng.integers(1, own.lesions + 1))
        ]
        fractions = add_tumours(brain.healthy, brain.place, found)
        return hollowed(fractions) if rng.random() < own.hollowed else fractions

    def scanner(rng: np.random.Generator) -> Scanner:
        machine = (draw_vendor_scanner if rng.random() < own.vendor else draw_scanner)(rng)
        flair, t1, _, t2 = (each.jittered(rng, own.jitter) for each in machine.protocols)
        # The same T1 weighting before and after contrast, as in the other populations.
        return replace(
            machine, protocols=(flair, t1, t1, t2), noise=machine.noise * own.noise, bias=machine.bias * own.bias
        )

    return Population(
        brain,
        tissue,
        scanner,
        description="Simulated patients of a population that a seed decides, in the layout of the Decathlon; not real",
        reference="zetadp simulated cohort; anatomy from ICBM 152, doi:10.1016/j.neuroimage.2010.07.033, and from "
        "implicit shapes",
    )
