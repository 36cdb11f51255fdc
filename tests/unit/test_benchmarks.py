"""Programs of benchmarks that a machine with a GPU runs for minutes, in tiny sizes on the processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_of_the_gpu_benchmark_runs(tmp_path):
    options = ["--output", str(tmp_path), "--device", "cpu", "--short", "--threads", "1", "--seconds", "900"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-m", "benchmarks.gpu", *options], cwd=ROOT, env=environment, check=False)
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["part"] for row in rows} == {"step", "breakdown", "paper", "user", "head", "tests"}
    assert not [row for row in rows if not row.get("value", -1) >= 0]  # failed, or not a number
    assert done.returncode == 0
