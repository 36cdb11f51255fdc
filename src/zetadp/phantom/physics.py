r"""How tissue becomes signal: relaxation, gadolinium, signal equations, the protocols that use them, and noise.

Times are in ms, concentrations in mmol/l, relaxivities in l/(mmol s).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from zetadp.phantom.tissues import Tissues

STAR_RATIO = 0.6
"""T2* over T2 in brain tissue away from air and iron. It is below 1 because the field in a voxel is never uniform."""


def spin_echo(density: np.ndarray, t1: np.ndarray, t2: np.ndarray, tr: float, te: float) -> np.ndarray:
    r"""Return the signal of a spin echo, :math:`\rho\,(1 - e^{-TR/T_1})\,e^{-TE/T_2}`.

    Valid for TE much shorter than TR. Bernstein, King and Zhou, Handbook of MRI Pulse Sequences (2004), chapter 14.3.
    """
    return np.asarray(density * (1 - np.exp(-tr / t1)) * np.exp(-te / t2))


def inversion_recovery(
    density: np.ndarray, t1: np.ndarray, t2: np.ndarray, tr: float, te: float, ti: float
) -> np.ndarray:
    r"""Return the signed signal of a spin echo after inversion.

    :math:`\rho\,(1 - 2 e^{-TI/T_1} + e^{-TR/T_1})\,e^{-TE/T_2}` for perfect inversion and TE much shorter than TR.
    It vanishes for :math:`TI = T_1 \ln 2` when TR is much longer than T1: with the T1 of cerebrospinal fluid this is
    FLAIR. As in a scanner, the magnitude is taken later, after partial volumes are summed and noise is added.
    Hajnal et al., J. Comput. Assist. Tomogr. 16 (1992) 841-844, doi:10.1097/00004728-199211000-00001.
    """
    return np.asarray(density * (1 - 2 * np.exp(-ti / t1) + np.exp(-tr / t1)) * np.exp(-te / t2))


def prepared_inversion_recovery(
    density: np.ndarray, t1: np.ndarray, t2: np.ndarray, tr: float, te: float, ti: float, preparation: float
) -> np.ndarray:
    r"""Return the signed signal of a spin echo after T2 preparation and inversion.

    :math:`\rho\,(1 - (1 + e^{-P/T_2}(1 - e^{-(TR - TI)/T_1}))\,e^{-TI/T_1})\,e^{-TE/T_2}` for a preparation of length
    :math:`P`: tissue of short T2 is hardly inverted, fluid is. Without preparation it is `inversion_recovery`.
    Used in Saranathan et al., Invest. Radiol. 49 (2014), doi:10.1097/RLI.0000000000000041.
    """
    before = np.exp(-preparation / t2) * (1 - np.exp(-(tr - ti) / t1))
    return np.asarray(density * (1 - (1 + before) * np.exp(-ti / t1)) * np.exp(-te / t2))


def spoiled_gradient_echo(
    density: np.ndarray, t1: np.ndarray, t2_star: np.ndarray, tr: float, te: float, flip: float
) -> np.ndarray:
    r"""Return the signal of a spoiled gradient echo in the steady state, with the flip angle in radians.

    :math:`\rho \sin\alpha\,(1 - E_1) / (1 - E_1 \cos\alpha)\,e^{-TE/T_2^*}` with :math:`E_1 = e^{-TR/T_1}`.
    Ernst and Anderson, Rev. Sci. Instrum. 37 (1966) 93-102, doi:10.1063/1.1719961.
    """
    remaining = np.exp(-tr / t1)
    steady = np.sin(flip) * (1 - remaining) / (1 - remaining * np.cos(flip))
    return np.asarray(density * steady * np.exp(-te / t2_star))


def nulling_time(t1: float, tr: float) -> float:
    r"""Return the inversion time that nulls a tissue, :math:`T_1 (\ln 2 - \ln(1 + e^{-TR/T_1}))`."""
    return float(t1 * (np.log(2) - np.log1p(np.exp(-tr / t1))))


def prepared_nulling_time(t1: float, t2: float, tr: float, preparation: float) -> float:
    r"""Return the inversion time that nulls a tissue after T2 preparation.

    :math:`T_1 \ln\frac{1 + D}{1 + D e^{-TR/T_1}}` with :math:`D = e^{-P/T_2}`: the zero of
    `prepared_inversion_recovery`.
    """
    kept = np.exp(-preparation / t2)
    return float(t1 * (np.log1p(kept) - np.log1p(kept * np.exp(-tr / t1))))


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
    """Repetition, echo and inversion time of one sequence, in ms; no inversion time means a plain spin echo."""

    tr: float
    te: float
    ti: float | None = None

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal of each tissue."""
        if self.ti is None:
            return spin_echo(tissues.density, tissues.t1, tissues.t2, self.tr, self.te)
        return inversion_recovery(tissues.density, tissues.t1, tissues.t2, self.tr, self.te, self.ti)


@dataclass(frozen=True)
class GradientEcho(Acquisition):
    """A spoiled gradient echo in the steady state: repetition and echo time in ms, flip angle in degrees."""

    tr: float
    te: float
    flip: float

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signal of each tissue."""
        star = STAR_RATIO * tissues.t2
        return spoiled_gradient_echo(tissues.density, tissues.t1, star, self.tr, self.te, np.deg2rad(self.flip))


@dataclass(frozen=True)
class PreparedFlair(Acquisition):
    """FLAIR whose inversion follows a T2 preparation: repetition, echo, inversion and preparation time in ms."""

    tr: float
    te: float
    ti: float
    preparation: float

    def signal(self, tissues: Tissues) -> np.ndarray:
        """Return the signed signal of each tissue."""
        return prepared_inversion_recovery(
            tissues.density, tissues.t1, tissues.t2, self.tr, self.te, self.ti, self.preparation
        )
