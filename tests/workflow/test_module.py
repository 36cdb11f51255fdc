"""The workflow as a module of another one, as docs/pipeline.md shows it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml
from checkouts import ROOT, SMOKE, copy_of_repository

from zetadp.config.load import read_overlaid

pytestmark = pytest.mark.slow


@pytest.fixture
def host(tmp_path):
    """Return another workflow in a folder of its own, beside a clone of this one."""
    clone = copy_of_repository(tmp_path / "zetadp")
    folder = tmp_path / "analysis"
    folder.mkdir()
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/pipeline.md").read_text(), flags=re.S)
    assert 'snakefile: "../zetadp/Snakefile"' in block
    (folder / "Snakefile").write_text(block)
    config = read_overlaid([clone.root / "config.yaml", clone.root / SMOKE])
    (folder / "analysis.yaml").write_text(yaml.safe_dump({"zetadp": config}))
    return replace(clone, root=folder)


def test_another_workflow_uses_all_rules(host):
    rules = host.would_run(configfile="analysis.yaml")
    assert {"zetadp_train_model", "zetadp_make_tables", "zetadp_pretrain", "analysis"} <= rules
    assert {rule for rule in rules if not rule.startswith("zetadp_")} == {"analysis"}


def test_a_stage_runs_with_the_library_of_the_module(host):
    index = "resources/phantom-smoke/partitions/smoke.csv"
    host.snakemake(index, configfile="analysis.yaml")
    assert (host.root / index).stat().st_size > 0
    log = (host.root / "logs/partition.log").read_text()
    assert f"with the library in {host.root.parent}/zetadp/src/zetadp\n" in log
    # Nothing was written into the clone.
    assert not any(
        (host.root.parent / "zetadp" / name).exists() for name in ("resources", "results", "logs", "ledgers")
    )
