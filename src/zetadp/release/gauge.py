"""Fix the phase of complex features, for each person separately, before mixing.

Features with an arbitrary global phase cancel in a mean: the mean of m unit vectors with independent phases has norm
1 / sqrt(m). Fixing the phase uses only the person's own features and keeps their norm, so it costs no privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor


def fix_phase(features: Tensor, reference: Tensor | None = None) -> Tensor:
    """Rotate each person's features until their inner product with a public reference is real and not negative.

    Parameters
    ----------
    features
        Complex features, shape (person, component). Features whose inner product is zero stay unchanged.
    reference
        A public vector, shape (component,). By default the first component becomes real. In k-space with the constant
        component first, this is the constant component.

    Returns
    -------
    The rotated features, of the same shape and the same norms.

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
