"""The workflow with engine flower: from volumes to a statement, with real processes in between."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from zetadp.config import load_config
from zetadp.configdocs import SCHEMA
from zetadp.federation.flower.plan import Plan
from zetadp.privacy.ledger import read_ledger
from zetadp.validation import UserError

ROOT = Path(__file__).parents[2]
TRACKED = ("Snakefile", "config.yaml", "envs", "profiles", "scripts", "src", "workflow")
RUN = "results/smoke/runs/complex/federated/eps-8/seed-0"


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    command = [sys.executable, "-m", "snakemake", *arguments, "--cores", "2"]
    return subprocess.run(
        [*command, "--configfile", "workflow/scenarios/smoke.yaml"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.processes
def test_a_federation_takes_the_place_of_the_simulation(tmp_path):
    for name in TRACKED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    changes = ["engine=flower", "privacy={noise: os}", "federation={answer_seconds: 0.2, update: float16}"]
    done = snakemake(tmp_path, f"{RUN}/privacy.json", f"{RUN}/metrics.json", "--config", *changes)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "train_federated" in done.stdout + done.stderr
    statement = json.loads((tmp_path / RUN / "privacy.json").read_text())
    assert (statement["guarantee"], statement["noise_source"]) == ("holds", "os")
    assert 0 < statement["epsilon"] <= 8
    assert statement["rounds"]["happened"] == 4
    # The account is that of the nodes' own ledgers, which outlive the results; their patients' images do not.
    (hospitals,) = (tmp_path / "ledgers/phantom-smoke").glob("*.hospitals")
    (account,) = (tmp_path / "ledgers/phantom-smoke").glob("*.jsonl")
    for name in ("node-01", "node-02", "node-03"):
        (own,) = (hospitals / name / "ledgers").iterdir()
        events = read_ledger(own)[-1].releases()
        assert len(events) == 4
        assert set(events) <= set(read_ledger(account)[-1].releases())
        assert not list(hospitals.rglob("*.h5"))
    work = next((tmp_path / "results/smoke/federation").iterdir())
    assert Plan.read(work / "plan.json").update == "float16"
    assert not [path for path in work.rglob("*") if path.suffix in (".key", ".secret", ".gz")]


def test_seeded_noise_between_hospitals_is_refused():
    content = yaml.safe_load((ROOT / "config.yaml").read_text()) | {"engine": "flower"}
    with pytest.raises(UserError, match=r"privacy\.noise: expected os with engine flower"):
        load_config(content, SCHEMA)
    content["privacy"]["noise"] = "os"
    assert load_config(content, SCHEMA)["federation"]["missing"] == "wait"
