"""The warm process that all crash tests of a test process share, and the undisturbed run of all stages."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("crash.reference")

from crash.reference import Reference  # noqa: E402
from crash.zygote import Zygote  # noqa: E402

from zetadp.report.provenance import COMMAND  # noqa: E402


@pytest.fixture(scope="session")
def zygote():
    with pytest.MonkeyPatch.context() as patched:
        # As the workflow does. Without it a table names the program that runs, and a test calls stages in several ways.
        patched.setenv(COMMAND, "snakemake")
        started = Zygote()
    with started as warm:
        yield warm


@pytest.fixture(scope="session")
def reference(zygote, tmp_path_factory):
    return Reference(zygote, tmp_path_factory.mktemp("reference"))
