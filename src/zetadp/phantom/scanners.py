r"""From tissue to stored intensities: relaxation, gadolinium, signal equations, protocols, scanners and noise.

Times are in ms, concentrations in mmol/l, relaxivities in l/(mmol s). Sources of the properties of tissue, all at body
temperature:

- T1 of grey and white matter, in vivo: Wright et al., MAGMA 21 (2008) 121-130, doi:10.1007/s10334-008-0104-8;
- their T2, and blood: Stanisz et al., Magn. Reson. Med. 54 (2005) 507-512, doi:10.1002/mrm.20605;
- cerebrospinal fluid: T1 of 4.3 s at any clinical field, Rooney et al., Magn. Reson. Med. 57 (2007) 308-318,
  doi:10.1002/mrm.21122; T2 near 2 s, Spijkerman et al., MAGMA 31 (2018) 415-424, doi:10.1007/s10334-017-0659-3;
- proton densities relative to water: Whittall et al., Magn. Reson. Med. 37 (1997) 34-43,
  doi:10.1002/mrm.1910370107;
- gliomas and their oedema: longer T1 and T2 and more water than white matter, with wide spread: Blystad et al.,
  Sci. Rep. 10 (2020) 17986, doi:10.1038/s41598-020-75105-6. The values below are rounded choices in that range;
- relaxivity of gadobutrol and gadoterate: Szomolanyi et al., Invest. Radiol. 54 (2019) 559-564,
  doi:10.1097/RLI.0000000000000577;
- contrast uptake: a rise of R1 by 0.03 / s in normal white matter and 0.05 / s in oedema (Blystad et al.), a fall of
  T1 by (0.84 +- 0.21) s in enhancing tumour, Noeth et al., NMR Biomed. 33 (2020) e4242, doi:10.1002/nbm.4242; grey
  matter holds about twice the blood of white matter, Leenders et al., Brain 113 (1990) 27-47,
  doi:10.1093/brain/113.1.27.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from scipy import ndimage

from zetadp.phantom.anatomy import Tissue, smooth_field
from zetadp.phantom.settings import CHANNELS, SLICE_THICKNESS, VoxelGrid

STAR_RATIO = 0.6
"""T2* over T2 in brain tissue away from air and iron. It is below 1 because the field in a voxel is never uniform."""


def nulling_time(t1: float, tr: float, inverted: float = 1.0) -> float:
    r"""Return the inversion time that nulls a tissue, :math:`T_1 \ln\frac{1 + D}{1 + D e^{-TR/T_1}}`.

    Parameters
    ----------
    t1, tr
        Longitudinal relaxation time of the tissue, and repetition time.
    inverted
        Share :math:`D` of its magnetisation that is inverted: after a T2 preparation of length :math:`P`,
        :math:`e^{-P/T_2}`.
    """
    return float(t1 * (np.log1p(inverted) - np.log1p(inverted * np.exp(-tr / t1))))


def shorten_time(time: np.ndarray, relaxivity: float, concentration: np.ndarray) -> np.ndarray:
    r"""Return a relaxation time in the presence of a contrast agent, :math:`1/T = 1/T_0 + r\,C`.

    Fast exchange of water is assumed, so that one concentration per tissue is enough.
    """
    # Relaxivities are per second, times are in milliseconds.
    return np.asarray(1 / (1 / time + relaxivity * concentration / 1000))


def rician(signal: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Return the magnitude of a signal with independent Gaussian noise in its real and its imaginary part.

    Gudbjartsson and Patz, Magn. Reson. Med. 34 (1995) 910-914, doi:10.1002/mrm.1910340618.
    """
    real, imaginary = rng.standard_normal((2, *signal.shape), dtype=np.float32)
    return np.asarray(np.hypot(signal + np.float32(sigma) * real, np.float32(sigma) * imaginary))


@dataclass(frozen=True)
class Acquisition(ABC):
    """Interface of a protocol: the signal of each tissue, and variation between examinations."""

    @abstractmethod
    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal (7,) of each tissue, in the order of `anatomy.Tissue`."""

    def jittered(self, rng: np.random.Generator, spread: float) -> Self:
        """Return the protocol of one examination, with every setting changed by up to ``spread`` (relative)."""
        settings = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        factors = 1 + rng.uniform(-spread, spread, len(settings))
        pairs = zip(settings.items(), factors, strict=True)
        return replace(self, **{name: None if value is None else value * factor for (name, value), factor in pairs})


@dataclass(frozen=True)
class Protocol(Acquisition):
    r"""A spin echo, after an inversion if it has an inversion time. Repetition, echo and inversion time are in ms.

    The signal is :math:`\rho\,(1 - e^{-TR/T_1})\,e^{-TE/T_2}` for TE much shorter than TR (Bernstein, King and Zhou,
    Handbook of MRI Pulse Sequences, 2004, chapter 14.3). After a perfect inversion the factor in parentheses is
    :math:`1 - 2 e^{-TI/T_1} + e^{-TR/T_1}`. It vanishes for :math:`TI = T_1 \ln 2` when TR is much longer than T1: with
    the T1 of cerebrospinal fluid this is FLAIR. As in a scanner, the magnitude is taken later, after partial volumes
    are summed and noise is added. Hajnal et al., J. Comput. Assist. Tomogr. 16 (1992) 841-844,
    doi:10.1097/00004728-199211000-00001.
    """

    tr: float
    te: float
    ti: float | None = None

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal of each tissue."""
        recovered = np.exp(-self.tr / tissues.t1)
        along = 1 - recovered if self.ti is None else 1 - 2 * np.exp(-self.ti / tissues.t1) + recovered
        return np.asarray(tissues.density * along * np.exp(-self.te / tissues.t2))


@dataclass(frozen=True)
class GradientEcho(Acquisition):
    r"""A spoiled gradient echo in the steady state: repetition and echo time in ms, flip angle in degrees.

    The signal is :math:`\rho \sin\alpha\,(1 - E_1) / (1 - E_1 \cos\alpha)\,e^{-TE/T_2^*}` with
    :math:`E_1 = e^{-TR/T_1}`. Ernst and Anderson, Rev. Sci. Instrum. 37 (1966) 93-102, doi:10.1063/1.1719961.
    """

    tr: float
    te: float
    flip: float

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signal of each tissue."""
        remaining, flip = np.exp(-self.tr / tissues.t1), np.deg2rad(self.flip)
        steady = np.sin(flip) * (1 - remaining) / (1 - remaining * np.cos(flip))
        return np.asarray(tissues.density * steady * np.exp(-self.te / (STAR_RATIO * tissues.t2)))


@dataclass(frozen=True)
class PreparedFlair(Acquisition):
    r"""FLAIR whose inversion follows a T2 preparation: repetition, echo, inversion and preparation time in ms.

    The signal is :math:`\rho\,(1 - (1 + e^{-P/T_2}(1 - e^{-(TR - TI)/T_1}))\,e^{-TI/T_1})\,e^{-TE/T_2}` for a
    preparation of length :math:`P`: tissue of short T2 is hardly inverted, fluid is. Used in Saranathan et al., Invest.
    Radiol. 49 (2014), doi:10.1097/RLI.0000000000000041.
    """

    tr: float
    te: float
    ti: float
    preparation: float

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal of each tissue."""
        before = np.exp(-self.preparation / tissues.t2) * (1 - np.exp(-(self.tr - self.ti) / tissues.t1))
        along = 1 - (1 + before) * np.exp(-self.ti / tissues.t1)
        return np.asarray(tissues.density * along * np.exp(-self.te / tissues.t2))


# Rows in the order of Tissue: fluid, grey, white, blood, oedema, core, rim.
T1 = {
    1.5: np.array([4300.0, 1197.0, 646.0, 1441.0, 1100.0, 1700.0, 1350.0]),
    3.0: np.array([4300.0, 1607.0, 838.0, 1932.0, 1350.0, 2000.0, 1650.0]),
}
"""Longitudinal relaxation times in ms, by field strength in tesla."""
T2 = {
    1.5: np.array([2000.0, 95.0, 72.0, 290.0, 150.0, 190.0, 120.0]),
    3.0: np.array([1900.0, 99.0, 69.0, 275.0, 140.0, 170.0, 110.0]),
}
"""Transverse relaxation times in ms, by field strength in tesla."""
DENSITY = np.array([1.0, 0.83, 0.71, 0.85, 0.82, 0.88, 0.84])
"""Proton density relative to water."""
UPTAKE = np.array([0.002, 0.016, 0.008, 0.35, 0.012, 0.03, 0.22])
"""Concentration of gadolinium in mmol/l some minutes after a usual dose of 0.1 mmol/kg."""
RELAXIVITY = (3.0, 4.9)
"""Range of r1 in l/(mmol s) over usual agents and fields."""
TRANSVERSE_RATIO = 1.25
"""r2 over r1 of the usual agents at 1.5 T and 3 T."""


@dataclass(frozen=True)
class Tissues:
    """Properties of one patient's tissues; arrays (7,) in the order of `Tissue`, times in ms.

    Attributes
    ----------
    density, t1, t2
        Proton density, longitudinal and transverse relaxation time.
    uptake
        Concentration of contrast agent after the injection, in mmol/l.
    relaxivity
        Longitudinal relaxivity of the agent, in l/(mmol s).
    """

    density: np.ndarray
    t1: np.ndarray
    t2: np.ndarray
    uptake: np.ndarray
    relaxivity: float

    def after_contrast(self) -> Tissues:
        """Return the tissues after uptake of the contrast agent, with shorter T1 and T2."""
        return Tissues(
            density=self.density,
            t1=shorten_time(self.t1, self.relaxivity, self.uptake),
            t2=shorten_time(self.t2, TRANSVERSE_RATIO * self.relaxivity, self.uptake),
            uptake=np.zeros(len(Tissue)),
            relaxivity=self.relaxivity,
        )


def draw_tissues(rng: np.random.Generator, field_strength: float) -> Tissues:
    """Draw one patient's tissues around the published means at a field strength of 1.5 or 3 tesla.

    Relaxation times vary by 5 % in healthy tissue and by 15 % in lesions, densities by 2 %. The dose of contrast agent
    varies by 20 %, and the uptake of each tissue by another 25 %, as delay after injection and leakiness differ.
    """
    spread = np.where(np.arange(len(Tissue)) < Tissue.OEDEMA, 0.05, 0.15)
    count = len(Tissue)
    return Tissues(
        density=DENSITY * np.exp(rng.normal(0, 0.02, count)),
        t1=T1[field_strength] * np.exp(rng.normal(0, 1, count) * spread),
        t2=T2[field_strength] * np.exp(rng.normal(0, 1, count) * spread),
        uptake=UPTAKE * np.exp(rng.normal(0, 0.2) + rng.normal(0, 0.25, count)),
        relaxivity=float(rng.uniform(*RELAXIVITY)),
    )


FLUID_T1 = 4300.0
"""T1 of cerebrospinal fluid (ms) from which centres compute the inversion time of FLAIR."""
FLUID_T2 = 2000.0
"""T2 of cerebrospinal fluid (ms) from which they compute the inversion time after T2 preparation."""
NOISE, NOISE_VOXEL = 0.03, 3.75
"""Noise of an average scanner, and the in-plane voxel size (mm) to which it refers.

It is the standard deviation in each of the two parts of the signal, relative to the mean signal of the brain. Finer
voxels hold less signal and are noisier, so that an average over a given area is equally noisy on every grid.
"""
BIAS_SPACING = 90.0
"""Distance of the knots of the receive field, in mm."""
HEAD_RADIUS = 80.0
"""Distance (mm) from the middle of the head at which the sensitivity of a coil array is one."""


@dataclass(frozen=True)
class Scanner:
    """One centre's scanner.

    Attributes
    ----------
    field_strength
        1.5 or 3 tesla.
    protocols
        Nominal protocol of each of `CHANNELS`.
    bias
        Standard deviation of the logarithm of the receive field over space.
    noise
        Noise relative to that of the average scanner.
    array
        Logarithm of the ratio of brightness between the surface of the brain and its middle: coils near the head
        receive most from the surface. Zero if the scanner corrects for this.
    acceleration
        Geometry factor of parallel imaging less one: the relative increase of noise in the middle of the brain over
        that at its surface. Pruessmann et al., Magn. Reson. Med. 42 (1999) 952-962.
    thickness
        Thickness in mm of the slices in which each of `CHANNELS` is acquired, before resampling to the grid.
    """

    field_strength: float
    protocols: tuple[Acquisition, ...]
    bias: float
    noise: float
    array: float = 0.0
    acceleration: float = 0.0
    thickness: tuple[float, ...] = (SLICE_THICKNESS,) * len(CHANNELS)


def draw_scanner(rng: np.random.Generator) -> Scanner:
    """Draw a scanner with the protocols of its centre.

    Ranges cover usual clinical protocols of brain tumour imaging: Ellingson et al., Neuro-Oncology 17 (2015)
    1188-1198, doi:10.1093/neuonc/nov095. A centre acquires T1 weighting by spin echo or with inversion, and with
    the same parameters before and after contrast, as that consensus asks.
    """
    field_strength = float(rng.choice([1.5, 3.0]))
    # At 3 T the longer T1 leaves a spin echo less contrast, so most centres invert there.
    inverted = bool(rng.random() < (0.7 if field_strength > 2 else 0.3))
    t1 = _draw_t1_weighted(rng, float(T1[field_strength][Tissue.GREY]), inverted=inverted)
    tr = rng.uniform(7000, 11000)
    flair = Protocol(tr=tr, te=rng.uniform(95, 140), ti=nulling_time(FLUID_T1, tr) * rng.uniform(0.92, 1.04))
    t2 = Protocol(tr=rng.uniform(2800, 6500), te=rng.uniform(75, 120))
    return Scanner(
        field_strength=field_strength,
        protocols=(flair, t1, t1, t2),
        bias=float(rng.uniform(0.05, 0.25)),
        noise=float(rng.uniform(0.5, 1.5)),
    )


def _draw_t1_weighted(rng: np.random.Generator, grey_t1: float, *, inverted: bool) -> Protocol:
    if inverted:
        # The signal of grey matter must be past zero, or its magnitude would exceed that of white matter.
        tr = rng.uniform(1700, 2400)
        return Protocol(tr=tr, te=rng.uniform(3, 12), ti=nulling_time(grey_t1, tr) * rng.uniform(1.25, 1.6))
    return Protocol(tr=rng.uniform(400, 750), te=rng.uniform(8, 18))


def draw_vendor_scanner(rng: np.random.Generator) -> Scanner:
    """Draw a scanner whose protocols lie outside the ranges of `draw_scanner`.

    T1 weighting is by a spoiled gradient echo, FLAIR by a short three-dimensional train after T2 preparation, T2
    weighting by late echoes at short repetition, in thick slices. The receive field is that of a coil array close to
    the head, and noise gathers in the middle, where parallel imaging amplifies it.
    """
    t1 = _draw_gradient_echo(rng)
    tr, preparation = rng.uniform(4800, 5600), rng.uniform(110, 170)
    flair = PreparedFlair(
        tr=tr,
        te=rng.uniform(68, 88),
        ti=nulling_time(FLUID_T1, tr, np.exp(-preparation / FLUID_T2)) * rng.uniform(0.95, 1.03),
        preparation=preparation,
    )
    t2 = Protocol(tr=rng.uniform(2000, 2600), te=rng.uniform(130, 170))
    return Scanner(
        field_strength=float(rng.choice([1.5, 3.0])),
        protocols=(flair, t1, t1, t2),
        bias=float(rng.uniform(0.02, 0.1)),
        noise=float(rng.uniform(0.5, 1.2)),
        array=float(rng.uniform(0.4, 0.9)),
        acceleration=float(rng.uniform(0.5, 1.5)),
        # Inversion and gradient echoes are read as volumes; T2w is still a stack of slices.
        thickness=(float(rng.integers(1, 3)), 1.0, 1.0, float(rng.integers(3, 6))),
    )


def _draw_gradient_echo(rng: np.random.Generator) -> Acquisition:
    """Draw a fast gradient echo, or a slower one with a larger flip angle."""
    if rng.random() < 0.5:
        return GradientEcho(tr=rng.uniform(7, 11), te=rng.uniform(2.5, 4.6), flip=rng.uniform(15, 22))
    return GradientEcho(tr=rng.uniform(22, 30), te=rng.uniform(3, 6), flip=rng.uniform(26, 34))


def acquire(
    signal: np.ndarray,
    inside: np.ndarray,
    grid: VoxelGrid,
    scanner: Scanner,
    channel: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Turn the signal of the voxels in the brain into stored intensities.

    Parameters
    ----------
    signal
        Signed signal (n,) of the voxels in the brain.
    inside
        Mask (x, y, z) of these voxels on the grid.
    grid, scanner
        Positions of the voxels, and the scanner that acquires them.
    channel
        Index of the sequence in `CHANNELS`.
    rng
        Source of receive field, gain and noise.

    Returns
    -------
    Array (n,), int16, all above zero.
    """
    bias = np.exp(scanner.bias * smooth_field(rng, grid, BIAS_SPACING)[inside])
    gain = rng.uniform(300, 3000)
    outward = _outwardness(grid, inside)
    signal = _average_over_slices(signal, inside, scanner.thickness[channel]) * bias
    signal = signal * np.exp(np.float32(scanner.array) * (outward - 1))
    signal = signal / np.abs(signal).mean()
    sigma = NOISE * scanner.noise * NOISE_VOXEL / np.sqrt(grid.voxel[0] * grid.voxel[1])
    # Noise that varies over space: dividing the signal and multiplying the magnitude scales the noise alone.
    uneven = 1 + np.float32(scanner.acceleration) * np.clip(1 - outward, 0, 1)
    magnitude = rician(signal / uneven, sigma, rng) * uneven
    return np.asarray(np.clip(np.rint(gain * magnitude), 1, np.iinfo(np.int16).max), dtype=np.int16)


def _average_over_slices(signal: np.ndarray, inside: np.ndarray, thickness: float) -> np.ndarray:
    """Average over slices that are thicker than those of the grid; the neighbourhood of the brain is dark."""
    slices = round(thickness / SLICE_THICKNESS)
    volume = np.zeros(inside.shape, dtype=np.float32)
    volume[inside] = signal
    return np.asarray(ndimage.uniform_filter1d(volume, slices, axis=2, mode="nearest")[inside])


def _outwardness(grid: VoxelGrid, inside: np.ndarray) -> np.ndarray:
    """Return the squared distance from the axis of the head, in units of `HEAD_RADIUS`, of the voxels in the brain."""
    x, y, _ = (axis - axis.mean() for axis in grid.axes())
    squared = (np.square(x)[:, None] + np.square(y)[None, :]) / HEAD_RADIUS**2
    return np.asarray(np.broadcast_to(squared[:, :, None], inside.shape)[inside], dtype=np.float32)
