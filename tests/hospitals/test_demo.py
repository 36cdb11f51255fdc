"""The federation that a new user sees first."""

from __future__ import annotations

import pytest

from zetadp.account.book import recorded_runs
from zetadp.accounting import composition
from zetadp.cli.commands import main
from zetadp.hospitals.demo import HOSPITALS, ROUNDS


@pytest.mark.slow
def test_the_demonstration_trains_and_its_next_steps_work(tmp_path, capsys):
    folder = tmp_path / "demo"
    assert main(["federation", "demo", "--folder", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"round {ROUNDS} of {ROUNDS}" in said
    assert "(8, 0.001)-differentially private for each training patient" in said
    (run,) = recorded_runs(folder / "ledger.jsonl")
    assert len(run.nodes) == HOSPITALS
    assert max(composition.epsilon(node.mechanisms, 1e-3) for node in run.nodes.values()) <= 8.005
    private = [path for state in folder.glob("hospital-*-state") for path in state.glob("[!a]*/**/*")]  # no approvals
    assert any(path.suffix == ".h5" for path in private)
    assert not any(path.stat().st_mode & 0o077 for path in private)
    for line in said.splitlines()[-2:]:
        name, *arguments = line.split()
        assert name == "zetadp"
        assert main(arguments) == 0
    assert main(["federation", "demo", "--folder", str(folder)]) == 1
    assert "new folder" in capsys.readouterr().err
