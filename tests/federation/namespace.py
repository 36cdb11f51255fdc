"""A network of one's own, in which every address in the world leads to this machine."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

PACKAGES = {"ip": "iproute2", "unshare": "util-linux"}
"""Debian's packages of the programs that make it."""


def alone_in_the_world() -> list[str]:
    """Return the beginning of a command that runs the rest of it there; skip the test where there is no such network.

    Where continuous integration runs, the programs must be installed: a test that is never run shows nothing.
    """
    # Debian keeps programs of administrators where a user's path need not lead.
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    found = {program: shutil.which(program, path=path) for program in PACKAGES}
    if missing := [f"{program} (Debian: {PACKAGES[program]})" for program in PACKAGES if not found[program]]:
        reason = f"no network namespace without {' and '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(f"{reason}: install it where continuous integration runs")
        pytest.skip(reason)
    alone = [str(found["unshare"]), "--map-root-user", "--net", "sh", "-ec"]
    everywhere = f"{found['ip']} link set lo up && {found['ip']} route add local 0.0.0.0/0 dev lo"
    if (probe := subprocess.run([*alone, everywhere], capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"no privileges for a network namespace: {probe.stderr.strip()}")
    return [*alone, f'{everywhere} && exec "$@"', "sh"]
