"""One federation of real processes that the tests of this folder share."""

from __future__ import annotations

import pytest
from hospitals.consortium import Consortium
from hospitals.sites import make_plan


@pytest.fixture(scope="session")
def consortium(tmp_path_factory):
    """Three nodes over TLS; each test runs a training of its own on them."""
    folder = tmp_path_factory.mktemp("consortium")
    with Consortium(folder, make_plan(nodes=3, rounds=3)) as running:
        running.start_nodes()
        yield running
        assert all(running.runs(name) for name in running.names)
