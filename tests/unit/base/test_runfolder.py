"""The folder of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunFolder, RunName
from zetadp.base.storage import read_json
from zetadp.base.validation import UserError

NAME = RunName("head", "federated", Target(8), 0)


def test_runs_of_pipeline_and_library_are_sealed_alike(tmp_path):
    run = RunFolder(tmp_path)
    for file in run.sealed:
        file.write_text("content")
    run.write_seal()
    of_library = read_json(run.seal)["files"]
    assert set(of_library) == {"model.safetensors", "ledger.jsonl", "plan.json", "privacy.json", "privacy.txt"}
    for file in (run.predictions, run.metrics, run.card):
        file.write_text("content")
    run.write_seal()
    of_pipeline = read_json(run.seal)["files"]
    assert of_library.items() <= of_pipeline.items()
    assert set(of_pipeline) - set(of_library) == {"predictions.csv", "metrics.json", "MODEL_CARD.md"}


def test_the_path_of_a_run_names_it_and_its_experiment(tmp_path):
    run = RunFolder(tmp_path / "default" / NAME.folder)
    assert run.run_name == NAME
    assert run.experiment == (tmp_path / "default").resolve()
    copied = RunFolder(tmp_path / "elsewhere/head/federated/eps-8/seed-0")
    assert (copied.run_name, copied.experiment) == (run.run_name, None)
    for path in ("runs/mine", "runs/head/federated/eps-8/0", "eps-8"):
        other = RunFolder(tmp_path / path)
        assert (other.run_name, other.experiment) == (None, None)


def test_a_folder_of_a_user_is_in_no_experiment_whatever_its_name(tmp_path):
    assert RunFolder(tmp_path / "My study/head/eps-8/seed-0").experiment is None


@pytest.mark.parametrize("target", [Target(8), Target(1.2345678), Target(math.inf), Target(math.inf, clipped=False)])
def test_a_path_and_a_file_hold_the_name_of_a_run_exactly(target, tmp_path):
    name = RunName("head", "federated", target, 3)
    assert RunFolder(tmp_path / name.folder).run_name == name
    assert RunName.from_json(json.loads(json.dumps(name.to_json()))) == name


def test_another_spelling_of_epsilon_names_no_run():
    with pytest.raises(UserError, match=r"Expected epsilon as the text '8', found '8\.0'"):
        assert RunFolder(Path("runs/head/federated/eps-8.0/seed-0")).run_name
