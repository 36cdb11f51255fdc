from __future__ import annotations

import signal
from functools import partial

import checkouts
import pytest
import torch
from hypothesis import settings

# Time says nothing about correctness on a machine that does other work too.
settings.register_profile("zetadp", deadline=None)
settings.load_profile("zetadp")
# The networks here are far too small to share among threads.
torch.set_num_threads(1)
# In the background a shell ignores interrupts, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU where there is none."""
    for item in items:
        if item.get_closest_marker("cuda") is not None and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def seed():
    """Start every test with the same state of torch's own generator, whichever tests ran before in its process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return a checkout in which the smoke scenario has run; one for all test processes, so it is never changed."""
    return checkouts.made_once(tmp_path_factory, "finished", checkouts.finished)


@pytest.fixture(scope="session")
def federated(finished, tmp_path_factory):
    """Return a copy of it in which one run was also trained by a real federation; never changed either."""
    return checkouts.made_once(tmp_path_factory, "federated", partial(checkouts.federated, simulated=finished))


@pytest.fixture
def copies(finished, tmp_path):
    """Return what makes a copy of the finished experiment, code and all, at another place."""
    return lambda name: finished.copied_to(tmp_path / name)


@pytest.fixture
def copy(copies):
    """Return one copy of the finished experiment."""
    return copies("copy")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Make a cache that workflows of a test share where they are called with ``--cache``."""
    monkeypatch.setenv("SNAKEMAKE_OUTPUT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def fresh(tmp_path):
    """Return a copy of the repository in which nothing has run."""
    return checkouts.copy_of_repository(tmp_path / "fresh")
