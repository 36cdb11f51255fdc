"""The accountant of zetadp behind Opacus's interface."""

from __future__ import annotations

from collections import Counter
from typing import Any

from opacus.accountants import IAccountant

from zetadp.privacy.accounting import epsilon


class PLDAccountant(IAccountant):  # type: ignore[misc]
    """Composes rounds by privacy-loss distribution: tight, and an upper bound."""

    def __init__(self) -> None:
        self.history: list[tuple[float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record one round."""
        steps = 1
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps))

    def get_epsilon(self, delta: float, **_: Any) -> float:  # noqa: ANN401
        """Return the epsilon to quote for all rounds so far: tight, and an upper bound."""
        rounds: Counter[tuple[float, float]] = Counter()
        for noise_multiplier, sample_rate, steps in self.history:
            rounds[sample_rate, noise_multiplier] += steps
        return epsilon(rounds, delta)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name of the accountant."""
        return "pld"
