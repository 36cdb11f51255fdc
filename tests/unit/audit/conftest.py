from __future__ import annotations

import numpy as np
import pytest
import torch

from zetadp.base.randomness import Purpose, stream
from zetadp.privacy.mechanism import NodeMechanism


@pytest.fixture
def faulty(monkeypatch):
    """Return what replaces the shipped noise: a function of the right one, in units of the clip, and of its event."""

    def with_noise(noise) -> None:
        def privatised(self, event, clipped_sum, again):
            right = stream(self.seed, Purpose.NOISE, self.place, event.round, again).standard_normal(len(clipped_sum))
            drawn = np.array(noise(right, event), np.float32) * np.float32(event.noise_multiplier * event.clip)
            return (clipped_sum + torch.from_numpy(drawn)) / event.expected

        monkeypatch.setattr(NodeMechanism, "_privatised", privatised)

    return with_noise
