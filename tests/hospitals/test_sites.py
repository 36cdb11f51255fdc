"""From a configuration and a cohort to what the sites of a federation hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from decathlon_builder import write_tiny_task
from hospitals.sites import SIZE, SLICES, make_plan, write_hospital_folder

from zetadp.base.validation import UserError
from zetadp.cli import main
from zetadp.hospitals.certificates import make_node_key
from zetadp.hospitals.hospital import load_hospital
from zetadp.hospitals.participant import Participant
from zetadp.hospitals.settings import HospitalSettings
from zetadp.mri.decathlon import SEQUENCES, write_site_folder
from zetadp.mri.index import index_cohort
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.mri.volumes import read_centre_slices
from zetadp.training.plan import Plan
from zetadp.training.promise import promise_of
from zetadp.training.records import items_of
from zetadp.training.task import site_task_of

ROOT = Path(__file__).parents[2]


def load_site(folder, plan, cache, **more):
    return site_task_of(plan.task).site(folder, plan, cache, **more)


def test_a_hospital_prepares_its_own_patients_as_the_stages_do(tmp_path):
    plan = make_plan()
    folder = write_hospital_folder(tmp_path / "images", 3)
    held = load_site(folder, plan, tmp_path / "cache", part="train", patients=3, backbone=None)
    each = len(SEQUENCES) * SLICES
    assert held.units() == items_of([(0,), (1,), (2,)], each)
    files = sorted((folder / "imagesTr").iterdir())
    order = ("FLAIR", "T1w", "T1gd", "T2w")
    for place, file in enumerate(files):
        expected = whiten(to_kspace(read_centre_slices(file, order, SLICES, SIZE)))
        own = held.inputs[each * place : each * (place + 1), 0]
        np.testing.assert_array_equal(own.numpy(), expected.reshape(-1, SIZE, SIZE))


def test_a_hospital_does_not_prepare_volumes_that_changed_after_their_hash(tmp_path, monkeypatch):
    folder = write_hospital_folder(tmp_path / "images", 3)
    changed = min((folder / "imagesTr").iterdir())

    def indexed(*arguments, **more):
        table = index_cohort(*arguments, **more)
        changed.write_bytes(max((folder / "imagesTr").iterdir()).read_bytes())
        return table

    monkeypatch.setattr("zetadp.mri.index.index_cohort", indexed)
    with pytest.raises(UserError, match=rf"{changed.name} as it was indexed, found another content. Run again"):
        load_site(folder, make_plan(), tmp_path / "cache", part="train", patients=3, backbone=None)
    assert not list((tmp_path / "cache").glob("*.h5"))


def test_a_hospital_may_lack_sequences_that_others_have(tmp_path):
    plan = make_plan()
    folder = write_tiny_task(tmp_path / "images", 2, 0, channels=("T2w", "FLAIR", "T1w"))
    held = load_site(folder, plan, tmp_path / "cache", part="train", patients=2, backbone=None)
    places = [[place for place in range(4 * SLICES) if place // SLICES != SEQUENCES.index("T1gd")] for _ in range(2)]
    assert held.units() == [places[0], [4 * SLICES + place for place in places[1]]]
    assert held.present.tolist() == held.inputs.isnan().flatten(1).all(dim=1).logical_not().tolist()
    # Every hospital computes as many images of a patient, and refuses other numbers than multiples of four.
    assert len(np.unique(held.strata)) == len(SEQUENCES)


def test_prepared_images_are_kept_and_made_again_when_files_change(tmp_path):
    plan = make_plan()
    folder = write_hospital_folder(tmp_path / "images", 2)
    options = {"part": "train", "patients": 2, "backbone": None}
    first = load_site(folder, plan, tmp_path / "cache", **options)
    (kept,) = (tmp_path / "cache").iterdir()
    before = kept.stat().st_mtime_ns
    load_site(folder, plan, tmp_path / "cache", **options)
    assert kept.stat().st_mtime_ns == before
    write_hospital_folder(folder, 2, seed=5)
    for path in (folder / "imagesTr").glob("PAT_00*"):
        path.unlink()
    second = load_site(folder, plan, tmp_path / "cache", **options)
    assert not np.array_equal(first.inputs.numpy(), second.inputs.numpy())


def test_the_folders_of_sites_hold_their_own_patients_alone(tmp_path):
    task = write_tiny_task(tmp_path / "task", 4, 2)
    table = index_cohort(task, train_patients=4, test_patients=2, slices=2)
    for part, rows in (("train", [1, 3]), ("test", [4, 5])):
        own = table.iloc[rows]
        write_site_folder(tmp_path / part, task, own, part)
        write_site_folder(tmp_path / part, task, own, part)
        counts = {"train_patients": 0, "test_patients": 0, f"{part}_patients": 2}
        found = index_cohort(tmp_path / part, **counts, slices=2)
        columns = ["patient", "record", "part", "sha256"]
        pd.testing.assert_frame_equal(found[columns], own[columns].reset_index(drop=True))
        assert sorted(path.name for path in (tmp_path / part).rglob("*.nii.gz")) == sorted(
            Path(file).name for file in own["file"]
        )


COORDINATOR = {
    "name": "three-hospitals",
    "cohort": {"name": "glioma", "source": "folder"},
    "partition": {"nodes": 3, "sizes": [9, 6, 12]},
    "arms": {"federated": {"expected_patients": 6, "rounds": 4}},
    "privacy": {"noise": "os"},
    "runs": [{"networks": ["complex"], "arms": ["federated"], "epsilons": [8], "seeds": [0]}],
}


def test_a_coordinator_without_patients_plans_for_hospitals_of_unequal_size(tmp_path):
    """It has no folder to name. The central arm of config.yaml wants more patients, and no run uses it."""
    (tmp_path / "over.yaml").write_text(json.dumps(COORDINATOR))
    alone = COORDINATOR | {"networks": {"complex": {}}, "training": {}}
    (tmp_path / "alone.yaml").write_text(json.dumps(alone))
    for files in (["alone.yaml"], [str(ROOT / "config.yaml"), "over.yaml"]):
        output = tmp_path / f"plan-of-{len(files)}.json"
        names = [str(tmp_path / file) for file in files]
        run = ["--network", "complex", "--epsilon", "8", "--output", str(output)]
        assert main(["federation", "plan", *names, *run]) == 0
        plan = Plan.read(output)
        assert [node.population for node in plan.nodes] == [9, 6, 12]
        assert promise_of(plan, "node-02").epsilon <= 8


def test_a_plan_that_sites_may_use_is_not_overwritten_by_another(tmp_path, capsys):
    (tmp_path / "one.yaml").write_text(json.dumps(COORDINATOR))
    two = COORDINATOR | {"arms": {"federated": {"expected_patients": 6, "rounds": 5}}}
    (tmp_path / "two.yaml").write_text(json.dumps(two))
    output = tmp_path / "plan.json"

    def planned(name: str) -> int:
        files = [str(ROOT / "config.yaml"), str(tmp_path / name)]
        return main(["federation", "plan", *files, "--network", "complex", "--epsilon", "8", "--output", str(output)])

    assert planned("one.yaml") == planned("one.yaml") == 0
    first = output.read_bytes()
    assert planned("two.yaml") == 1
    assert f"found {output} with other content" in capsys.readouterr().err
    assert output.read_bytes() == first


def test_a_run_that_the_configuration_lacks_is_a_users_error(capsys):
    assert main(["federation", "plan", str(ROOT / "config.yaml"), "--network", "complex", "--epsilon", "3"]) == 1
    said = capsys.readouterr().err
    assert "Expected a federated run of the configuration (" in said
    assert "complex federated 8 0; " in said


def test_a_hospital_is_made_of_its_files(tmp_path):
    plan = make_plan(noise="os")
    plan.write(tmp_path / "plan.json")
    write_hospital_folder(tmp_path / "images", plan.nodes[1].population)
    files = {"plan": "plan.json", "images": "images", "state": "state"}
    (tmp_path / "node.yaml").write_text(json.dumps({"name": "node-02", "threads": 1} | files))
    make_node_key(tmp_path / "pub.pem", tmp_path / "node.key")
    participant = Participant.read(HospitalSettings.read(tmp_path / "node.yaml"), tmp_path / "node.key")
    with pytest.raises(UserError, match="Nobody has approved"):
        load_hospital(participant)
    participant.approve("a test", participant.digest)
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"found no folder .*images"):
        load_hospital(participant)
    (tmp_path / "elsewhere").rename(tmp_path / "images")
    hospital = load_hospital(participant)
    assert len(hospital.units) == plan.nodes[1].population
    assert hospital.settings.simulation is False
