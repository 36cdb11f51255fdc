"""Scans of the public simulation: tissues at any field strength, and protocols from the whole range of clinical use.

Ranges are wider than in any hospital, so that trained networks also work for scanners that they never saw.
Times are in ms, angles in degrees, field strengths in tesla.
"""

from __future__ import annotations

import numpy as np

from zetadp.phantom.anatomy import Tissue
from zetadp.phantom.physics import nulling_time
from zetadp.phantom.protocols import Acquisition, GradientEcho, Protocol
from zetadp.phantom.scanners import CHANNELS, FLUID_T1
from zetadp.phantom.tissues import DENSITY, T1, T2, UPTAKE, Tissues

FIELD_STRENGTHS = (0.5, 4.0)
"""Lowest and highest field strength, in tesla."""
T1_GROWTH = np.log(T1[3.0] / T1[1.5]) / np.log(2)
"""Power of the field strength with which T1 of each tissue grows, from its values at 1.5 T and 3 T.

Over clinical fields T1 follows a power law: Rooney et al., Magn. Reson. Med. 57 (2007) 308-318, doi:10.1002/mrm.21122.
"""
T2_GROWTH = np.log(T2[3.0] / T2[1.5]) / np.log(2)
"""Power of the field strength with which T2 of each tissue grows, in the same way."""
LONG_TR = 20.0
"""Repetition time (ms) above which a gradient echo gets a larger flip angle; else it would lose its T1 weighting."""


def draw_field_strength(rng: np.random.Generator) -> float:
    """Draw a field strength, evenly over its logarithm."""
    return float(np.exp(rng.uniform(*np.log(FIELD_STRENGTHS))))


def draw_public_tissues(rng: np.random.Generator, field_strength: float) -> Tissues:
    """Draw one patient's tissues at any field strength.

    The spread around the published means is about twice that of patients. Relaxation times vary by 10 % in each healthy
    tissue, by 25 % in each lesion, and by 8 % in all together. The uptake of contrast agent varies by 45 % in all
    together, and by another 35 % in each tissue.
    """
    count = len(Tissue)
    spread = np.where(np.arange(count) < Tissue.OEDEMA, 0.10, 0.25)
    times = []
    for at_1_5, growth in ((T1[1.5], T1_GROWTH), (T2[1.5], T2_GROWTH)):
        deviation = np.exp(rng.normal(0, 1, count) * spread + rng.normal(0, 0.08))
        times.append(at_1_5 * (field_strength / 1.5) ** growth * deviation)
    return Tissues(
        t1=times[0],
        t2=times[1],
        density=DENSITY * np.exp(rng.normal(0, 0.05, count)),
        uptake=UPTAKE * np.exp(rng.normal(0, 0.45) + rng.normal(0, 0.35, count)),
        relaxivity=rng.uniform(2.5, 5.5),
    )


def draw_signals(rng: np.random.Generator, tissues: Tissues) -> np.ndarray:
    """Draw a protocol for each sequence and return the signal of each tissue under it.

    Returns
    -------
    Array (sequence, tissue), float32, signed; sequences in the order of `scanners.CHANNELS`.
    """
    before = draw_t1_weighted(rng, tissues)
    # Two scans in five are repeated after the injection with another protocol, as happens in practice.
    after = before if rng.random() < 0.6 else draw_t1_weighted(rng, tissues)
    protocols: dict[str, Acquisition] = {
        "FLAIR": draw_flair(rng, tissues),
        "T1w": before,
        "t1gd": after,
        "T2w": draw_t2_weighted(rng),
    }
    present = {name: tissues.after_contrast() if name == "t1gd" else tissues for name in CHANNELS}
    return np.stack([protocols[name].signal(present[name]) for name in CHANNELS]).astype(np.float32)


def draw_t1_weighted(rng: np.random.Generator, tissues: Tissues) -> Acquisition:
    """Draw a T1-weighted protocol: a spin echo, an inverted one or a spoiled gradient echo."""
    kind = rng.random()
    if kind < 0.4:
        return Protocol(tr=rng.uniform(350, 900), te=rng.uniform(6, 25))
    if kind < 0.75:
        tr, te = rng.uniform(1500, 2700), rng.uniform(2, 15)
        # Past the zero of grey matter, or its magnitude would rise above that of white matter.
        past = rng.uniform(1.15, 1.8)
        return Protocol(tr=tr, te=te, ti=nulling_time(tissues.t1[Tissue.GREY], tr) * past)
    tr, te, flip = rng.uniform(6, 40), rng.uniform(2, 8), rng.uniform(12, 45)
    return GradientEcho(tr=tr, te=te, flip=rng.uniform(25, 70) if tr > LONG_TR else flip)


def draw_flair(rng: np.random.Generator, tissues: Tissues) -> Protocol:
    """Draw a FLAIR protocol whose inversion time nulls about the patient's own fluid, or fluid of the usual T1."""
    tr = rng.uniform(5000, 12000)
    nulled = nulling_time(tissues.t1[Tissue.CSF] if rng.random() < 0.5 else FLUID_T1, tr)
    return Protocol(tr=tr, ti=nulled * rng.uniform(0.88, 1.06), te=rng.uniform(80, 160))


def draw_t2_weighted(rng: np.random.Generator) -> Protocol:
    """Draw a T2-weighted spin echo."""
    return Protocol(tr=rng.uniform(2200, 9000), te=rng.uniform(65, 140))
