"""A head that learns from released rows, for those who have the file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from zetadp.base.calls import checked_calls
from zetadp.base.names import checked_path
from zetadp.base.validation import UserError
from zetadp.nn.heads import RowExamples, fit_head_to_rows
from zetadp.own.rows import read_rows


class ReleasedHead(nn.Module):
    """Affine class scores of features, which it clips to the norm to which those behind the rows were clipped.

    Parameters
    ----------
    weight, bias
        Shapes (class, component) and (class,), real or complex. The real parts of the outputs are the scores.
    norm
        Norm to which features are clipped.
    """

    def __init__(self, weight: Tensor, bias: Tensor, norm: float) -> None:
        super().__init__()
        self.weight, self.bias, self.norm = nn.Parameter(weight), nn.Parameter(bias), norm

    def forward(self, features: Tensor) -> Tensor:
        """Return class scores of shape (item, class) for features of shape (item, component)."""
        count = self.weight.shape[1]
        if features.ndim != 2 or features.shape[1] != count:
            raise UserError(f"features: Expected shape (item, {count}), like the rows, found {tuple(features.shape)}.")
        if features.is_complex() and not self.weight.is_complex():
            raise UserError("features: Expected real features, like those behind the rows, found complex ones.")
        values = features.to(self.weight.dtype)
        norms = torch.linalg.vector_norm(values, dim=1, keepdim=True)
        clipped = values * (self.norm / norms.clamp_min(self.norm)) if self.norm < torch.inf else values
        return (clipped @ self.weight.T + self.bias).real


@checked_calls()
def fit_head(file: Path | str, *, subtract_noise: bool = True) -> ReleasedHead:
    """Fit an affine head to the rows of a release; it costs the people behind them no further privacy.

    Parameters
    ----------
    file
        File that `zetadp.release` or ``zetadp release`` wrote.
    subtract_noise
        Whether to fit by least squares with the known noise subtracted from the features' second moments. Otherwise the
        loss is the cross-entropy with the labels, of which negative ones count as zero. Either way, the strength of a
        ridge penalty is chosen on rows left out. Leave it on for rows that are open to all classes. On few rows that
        are open to some classes only (``active`` below 1), the other head can learn more: up to 4 points with 5 rows
        for each number in a feature vector, and 0.3 with 19 (papers/neuromixgdp/results/regimes.csv). Choose by such
        public constants: the statement does not cover a choice by the accuracy on private people.

    Returns
    -------
    The head. Call it with new features from the same method, shape (item, component), to get class scores; it clips
    them like those behind the rows.

    Raises
    ------
    UserError
        If the file is absent, not a release, or lacks what the fit needs.
    """
    rows = read_rows(checked_path(file, "file"))
    features, labels = torch.from_numpy(rows.features), torch.from_numpy(rows.labels)
    real = not features.is_complex()
    noise = rows.noise**2 if subtract_noise else 0.0
    weight, bias = fit_head_to_rows(RowExamples(features.to(torch.complex64), labels, noise))
    return ReleasedHead(weight.real.clone() if real else weight, bias.real.clone() if real else bias, rows.norm)
