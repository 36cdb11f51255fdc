from __future__ import annotations

import pytest
import torch
from hypothesis import settings

# Time says nothing about correctness on a machine that does other work too.
settings.register_profile("zetadp", deadline=None)
settings.load_profile("zetadp")
# The networks here are far too small to share among threads.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none."""
    for item in items:
        if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
