r"""How tissue becomes signal: relaxation, gadolinium, signal equations, the protocols that use them, and noise.

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

from zetadp.phantom.anatomy import Tissue

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


def shortened(time: np.ndarray, relaxivity: float, concentration: np.ndarray) -> np.ndarray:
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
        """Return the tissues as the contrast agent leaves them, with shorter T1 and T2."""
        return Tissues(
            density=self.density,
            t1=shortened(self.t1, self.relaxivity, self.uptake),
            t2=shortened(self.t2, TRANSVERSE_RATIO * self.relaxivity, self.uptake),
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
