from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zetadp.mri.kspace import to_kspace, whiten
from zetadp.nn import models
from zetadp.nn.models import NetworkSettings, build


def images(count: int, size: int, seed: int = 0) -> torch.Tensor:
    """Return k-space of discs in noise, of shape (image, 1, row, column)."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    discs = [np.hypot(rows - y, columns - x) < r for x, y, r in random.uniform(size / 5, size / 2, (count, 3))]
    slices = 100 * np.array(discs, dtype=np.float32) + 10 * random.random((count, size, size), dtype=np.float32)
    return torch.from_numpy(whiten(to_kspace(slices))).unsqueeze(1)


def network(seed: int = 0, **changed) -> torch.nn.Module:
    """Return a network whose scales and shifts are no longer those of the start."""
    given = {"widths": (4, 8), "convolutions": 2, "head": "pooled", "groups": 2, "transform": "fourier", **changed}
    made = build(NetworkSettings(**given), 4, 16, np.random.default_rng(seed))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in made.modules():
            if hasattr(module, "shift"):
                module.scale.add_(torch.randn(module.scale.shape, dtype=module.scale.dtype, generator=generator))
                module.shift.add_(torch.randn(module.shift.shape, dtype=module.shift.dtype, generator=generator))
    return made


def in_double(model: torch.nn.Module) -> torch.nn.Module:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.complex128)
    return model


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 7),
    widths=st.sampled_from([(2,), (4, 8), (6, 4, 8)]),
    convolutions=st.integers(1, 3),
    head=st.sampled_from(["pooled", "hidden"]),
    block=st.sampled_from([1, 3000, 1 << 17]),
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_the_layers(count, widths, convolutions, head, block, seed):
    model = in_double(network(seed, widths=widths, convolutions=convolutions, head=head))
    given = images(count, 16, seed).to(torch.complex128)
    expected = model(given).detach()
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(models, "UNTRAINED_BLOCK", block)
        before = given.clone()
        torch.testing.assert_close(model(given), expected, atol=1e-10, rtol=1e-10)
    assert torch.equal(given, before)


def test_numbers_whose_exponential_overflows_are_kept():
    model = network()
    with torch.no_grad():
        model.blocks[1].scale.mul_(1e4)
    given = images(3, 16)
    expected = model.features(given).detach()
    with torch.no_grad():
        torch.testing.assert_close(model.features(given), expected, atol=1e-5, rtol=1e-4)
