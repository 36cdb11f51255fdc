"""The phase of complex features, fixed person by person before they are mixed.

Features whose global phase is arbitrary cancel in a mean: of m unit vectors with independent phases the mean has norm
one over the root of m. A map of each person's features alone costs no privacy, and does not change their norm.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fix_phase(features: Tensor, reference: Tensor | None = None) -> Tensor:
    """Turn each person's features so that their inner product with a public reference is real and not negative.

    Parameters
    ----------
    features
        Complex features, shape (person, component). Where the inner product is zero they stay as they are.
    reference
        A public vector, shape (component,); by default the first component is made real, which for k-space is the
        constant one if it stands first.

    Examples
    --------
    >>> turned = fix_phase(torch.tensor([[1j, 2.0], [0.0, 3j]]))
    >>> turned.tolist()
    [[(1+0j), -2j], [0j, 3j]]
    """
    inner = features[:, 0] if reference is None else features @ reference.conj()
    size = inner.abs()
    turn = torch.where(size > 0, inner.conj() / size.clamp_min(torch.finfo(size.dtype).tiny), 1)
    return features * turn[:, None]
