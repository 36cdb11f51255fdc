"""A task of somebody else's: complex regression. It knows the library, and the library does not know it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Tell by which complex factors the features of an item were turned and stretched, and added up."""

    features: int

    metric = "explained"

    @property
    def outputs(self) -> int:
        """One complex number."""
        return 1

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return squared errors."""
        return (outputs[:, 0] - targets).abs().square()

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of the target's square that is explained."""
        return 1 - self.losses(outputs, targets) / targets.abs().square().mean()

    def measure(self, outputs: Tensor, targets: Tensor) -> dict[str, np.ndarray]:
        """Return the square of the target and of the error."""
        return {
            "square": targets.abs().square().numpy(),
            "error": self.losses(outputs, targets).numpy(),
        }

    def summarise(self, predictions: pd.DataFrame) -> dict[str, object]:
        """Return the share of all squares that is explained, of all and by patient."""
        sums = predictions.groupby("patient")[["square", "error"]].sum()
        total = sums.sum()
        return {
            "metric": self.metric,
            self.metric: float(1 - total["error"] / total["square"]),
            f"{self.metric}_interval": {"low": None, "high": None},
            "per_patient": (1 - sums["error"] / sums["square"]).to_dict(),
            "per_patient_images": predictions["patient"].value_counts().to_dict(),
        }
