from __future__ import annotations

import json
import math
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from zetadp.base.epsilon import CONSENT, epsilon_label
from zetadp.base.validation import UserError
from zetadp.config.checked import load_config
from zetadp.config.configured import (
    declared_nodes,
    hospital_sizes,
    network_of,
    plan_of,
    run_names,
    threat_of,
    training_of,
)
from zetadp.core.plan import Plan, RunName
from zetadp.core.pretrained import trained_on

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "src/zetadp/data/config.schema.yaml"
SCENARIOS = sorted([*ROOT.glob("workflow/scenarios/*.yaml"), *ROOT.glob("papers/*/scenarios/*.yaml")])


MANY = {"trainings": 99, "without_noise": CONSENT}
RUN = {"networks": ["complex"], "arms": ["federated"], "epsilons": [1, 3], "seeds": [0]}


def merged(base: dict, overlay: dict) -> dict:
    """Lay one configuration over another as Snakemake does: keys join, everything else is replaced."""
    result = dict(base)
    for key, value in overlay.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def default() -> dict:
    return yaml.safe_load((ROOT / "config.yaml").read_text())


def paper() -> dict:
    """Return the smallest configuration of the paper's cohort."""
    return {
        "name": "paper",
        "cohort": {"name": "brain", "source": "download", "train_patients": 484, "test_patients": 266},
        "partition": {},
        "networks": {"complex": {}},
        "arms": {
            "federated": {"expected_patients": 24, "epochs": 500},
            "central": {"expected_patients": 24, "epochs": 500},
        },
        "training": {},
        "privacy": {"noise": "os", **MANY},
        "runs": [RUN],
    }


def faults(change: dict, base: dict | None = None) -> str:
    with pytest.raises(UserError) as error:
        load_config(merged(base or paper(), change), SCHEMA)
    return str(error.value)


def planned(config: dict, network: str, arm: str) -> dict:
    """Return the declared numbers of a plan."""
    plan = plan_of(config, RunName(network, arm, "8", 0))
    found = {"sizes": [node.population for node in plan.nodes], "expected": [node.expected for node in plan.nodes]}
    found |= {"rounds": plan.training.rounds}
    found |= {} if plan.colluding is None else {"colluding": plan.colluding}
    return found if plan.unit == "patient" else found | {"images_of_a_patient": plan.units_of_a_person}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_over_the_default_is_right(path):
    config = load_config(merged(default(), yaml.safe_load(path.read_text())), SCHEMA)
    assert len(run_names(config)) > 0
    for run in run_names(config):
        plan = plan_of(config, run)
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
        assert plan.run == run
        # What a model's file will say of its patients: a field, whatever the cohort is called.
        assert plan.simulated == trained_on(plan)["simulated"] == (not config["cohort"]["real_patients"])


def test_there_are_scenarios_and_each_has_results_and_patients_of_its_own_name():
    names = [yaml.safe_load(path.read_text())["name"] for path in SCENARIOS] + [default()["name"]]
    assert len(SCENARIOS) >= 1
    assert len(set(names)) == len(names)


def test_the_default_is_right():
    config = load_config(default(), SCHEMA)
    assert config["training"]["drop_after"] == 0.6
    assert config["device"] == "auto"


def test_defaults_are_filled_in_at_every_depth_and_the_input_is_left_alone():
    given = paper()
    kept = deepcopy(given)
    config = load_config(given, SCHEMA)
    assert given == kept
    assert config["slices"] == {"count": 20, "size": 32, "decision": "image"}
    assert config["partition"] == {"nodes": 11, "by": "uniform", "sizes": None, "validation_patients": 10, "seed": 0}
    assert config["networks"]["complex"]["widths"] == [32, 64, 128]
    assert config["training"]["learning_rate"] == 2e-4
    assert config["cohort"]["unit"] == "record"
    assert config["arms"]["central"]["rounds"] is None
    # Defaults of one section are not the objects of another.
    other = load_config(given, SCHEMA)
    config["networks"]["complex"]["widths"].append(1)
    assert other["networks"]["complex"]["widths"] == load_config(given, SCHEMA)["networks"]["complex"]["widths"]


def test_500_epochs_are_917_rounds_at_a_node_of_44_and_10083_in_one_place():
    config = load_config(paper(), SCHEMA)
    assert declared_nodes(config, "federated") == [44] * 11
    assert declared_nodes(config, "central") == [484]
    assert planned(config, "complex", "federated")["rounds"] == 917
    assert planned(config, "complex", "central")["rounds"] == 10083


def test_a_network_may_be_trained_in_its_own_way():
    own = {"rounds": 7, "participation": "all", "optimiser": "sgd", "learning_rate": 0.5}
    config = load_config(merged(paper(), {"networks": {"own": {"training": own}, "two": {}}}), SCHEMA)
    assert planned(config, "own", "federated") == {"sizes": [44] * 11, "expected": [44.0] * 11, "rounds": 7}
    assert planned(config, "own", "central") == {"sizes": [484], "expected": [484.0], "rounds": 7}
    assert planned(config, "two", "federated") == {"sizes": [44] * 11, "expected": [24.0] * 11, "rounds": 917}
    general = {key: value for key, value in config["training"].items() if key != "unit"}
    assert training_of(config, "two") == general
    changed = {"optimiser": "sgd", "learning_rate": 0.5}
    assert training_of(config, "own") == {**general, **changed}
    assert "training" not in network_of(config, "own")
    fewer = load_config(merged(paper(), {"networks": {"own": {"training": {"expected_patients": 11}}}}), SCHEMA)
    assert planned(fewer, "own", "federated") == {"sizes": [44] * 11, "expected": [11.0] * 11, "rounds": 2000}


def test_an_estimator_in_closed_form_has_one_round_of_everybody():
    head = {"family": "head", "domain": "features", "components": 4, "training": {"estimator": "class_means"}}
    config = load_config(merged(paper(), {"networks": {"own": head}}), SCHEMA)
    assert planned(config, "own", "federated") == {"sizes": [44] * 11, "expected": [44.0] * 11, "rounds": 1}
    assert planned(config, "own", "central") == {"sizes": [484], "expected": [484.0], "rounds": 1}
    assert training_of(config, "own")["estimator"] == "class_means"
    summed = load_config(merged(secure(), {"networks": {"own": head}}), SCHEMA)
    assert planned(summed, "own", "mine") == planned(config, "own", "federated") | {"colluding": 1}


ESTIMATOR_FAULTS = {
    "rounds": ({"rounds": 20}, "networks.own.training.rounds: expected 1 for estimator class_means"),
    "sampling": ({"participation": "sampled"}, "networks.own.training: expected participation all"),
    "patients": ({"expected_patients": 4}, "networks.own.training: expected participation all"),
    "images": ({"unit": "image"}, "networks.own.training.unit: expected patient for estimator class_means"),
    "descent": ({"estimator": "descent", "feature_norm": 1.0}, "feature_norm: expected with estimators other"),
    "name": ({"estimator": "class_mean"}, "class_means"),
}


@pytest.mark.parametrize("what", ESTIMATOR_FAULTS)
def test_what_an_estimator_does_not_do_is_refused(what):
    change, message = ESTIMATOR_FAULTS[what]
    head = {"family": "head", "domain": "features", "training": {"estimator": "class_means", **change}}
    assert message in faults({"networks": {"own": head}})


def test_a_taper_is_for_descent():
    head = {"family": "head", "domain": "features", "taper": 1.0, "training": {"estimator": "class_means"}}
    assert "networks.own.taper: expected 0 with estimator class_means" in faults({"networks": {"own": head}})


def test_an_estimator_in_closed_form_is_for_heads():
    assert "expected descent for family complex" in faults(
        {"networks": {"own": {"training": {"estimator": "class_means"}}}}
    )


def secure(**changes) -> dict:
    """Return a simulated cohort with an arm of secure aggregation."""
    arm = {"threat": "secure_aggregation", "expected_patients": 24, "rounds": 5, **changes}
    cohort = {"name": "phantom-x", "source": "simulated"}
    return merged(paper(), {"arms": {"mine": arm}, "cohort": cohort, "privacy": {"noise": "seeded"}})


def test_an_arm_of_any_name_is_held_as_its_threat_model_says():
    change = {
        "arms": {"one": {"threat": "central", "expected_patients": 24, "rounds": 5}, "central": {"threat": "local"}}
    }
    config = load_config(merged(secure(colluding=3), change), SCHEMA)
    threats = {arm: threat_of(config, arm) for arm in config["arms"]}
    assert threats == {"federated": "local", "central": "local", "mine": "secure_aggregation", "one": "central"}
    assert declared_nodes(config, "one") == [484]
    assert declared_nodes(config, "central") == declared_nodes(config, "mine") == hospital_sizes(config) == [44] * 11
    plan = {"sizes": [44] * 11, "expected": [24.0] * 11, "rounds": 5}
    assert planned(config, "complex", "mine") == plan | {"colluding": 3}
    assert "colluding" not in planned(config, "complex", "federated")


def test_by_default_the_central_arm_has_one_holder_and_no_other_has():
    config = load_config(paper(), SCHEMA)
    assert {arm: threat_of(config, arm) for arm in config["arms"]} == {"federated": "local", "central": "central"}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"privacy": {"noise": "os"}}, "arms.mine.threat: expected local or central with privacy.noise os"),
        (
            {"cohort": {"name": "real", "source": "download"}, "privacy": {"noise": "os"}},
            "arms.mine.threat: expected local or central for real patients",
        ),
        (
            {"engine": "flower", "privacy": {"noise": "os"}},
            "arms.mine.threat: expected local or central with engine flower",
        ),
        ({"arms": {"mine": {"colluding": 11}}}, "arms.mine.colluding: expected fewer than the 11 nodes"),
        ({"arms": {"mine": {"colluding": 0}}}, "arms.mine.colluding"),
    ],
)
def test_secure_aggregation_is_refused_where_no_simulation_will_do(change, part):
    message = faults(change, secure())
    assert part in message
    assert "no protocol is implemented" in message or "colluding" in part


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"privacy": {"noise": "os"}}, "with privacy.noise os; found von_mises_fisher: no exact sampler"),
        ({"engine": "flower", "privacy": {"noise": "os"}}, "with engine flower; found von_mises_fisher"),
        (
            {"runs": [{"networks": ["complex"], "arms": ["mine"], "epsilons": [1], "seeds": [0]}]},
            "runs.0: expected release gaussian for arms with threat secure_aggregation",
        ),
    ],
)
def test_directions_are_refused_where_they_cannot_be(change, part, own):
    settings = {"training": {"release": "von_mises_fisher"}}
    directed = merged(secure(), {"networks": {"complex": settings}} if own else settings)
    assert planned(load_config(directed, SCHEMA), "complex", "federated")
    assert part in faults(change, directed)


def per_image(place: dict) -> dict:
    cohort = {"name": "phantom-x", "source": "simulated"}
    return merged(merged(paper(), {"cohort": cohort, "privacy": {"noise": "seeded"}}), place)


@pytest.mark.parametrize("own", [True, False])
def test_images_are_drawn_as_often_as_patients_times_their_images(own):
    unit = {"unit": "image", "images_per_patient": 8}
    config = load_config(
        per_image({"networks": {"complex": {"training": unit}}} if own else {"training": unit}), SCHEMA
    )
    plan = planned(config, "complex", "federated")
    assert plan == {"sizes": [44 * 80] * 11, "expected": [24.0 * 8] * 11, "rounds": 917, "images_of_a_patient": 80}
    patients = planned(load_config(per_image({}), SCHEMA), "complex", "federated")
    assert plan["expected"][0] / plan["sizes"][0] == pytest.approx(24 / 44 * 8 / 80)
    assert patients == {"sizes": [44] * 11, "expected": [24.0] * 11, "rounds": 917}
    assert "unit" not in training_of(config, "complex")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"cohort": {"name": "real", "source": "download"}, "privacy": {"noise": "os"}}, "does not protect patients"),
        (
            {"cohort": {"name": "x", "source": "folder", "folder": "y", "real_patients": False, "unit": "record"}},
            "networks.complex.training.unit: expected patient for a cohort with source folder; found image",
        ),
        ({"networks": {"complex": {"training": {"images_per_patient": 84}}}}, "at most the 80 images"),
    ],
)
def test_a_guarantee_per_image_is_for_simulations(change, part):
    assert part in faults(change, per_image({"networks": {"complex": {"training": {"unit": "image"}}}}))


def test_a_guarantee_per_image_is_refused_where_images_change_each_other():
    head = {"family": "head", "domain": "study", "training": {"unit": "image"}}
    wanted = "networks.own.training.unit: expected patient for own of domain study"
    assert wanted in faults({"networks": {"own": head}}, per_image({}))


def test_given_rounds_are_taken_as_they_are():
    config = load_config(merged(paper(), {"arms": {"central": {"rounds": 12, "epochs": None}}}), SCHEMA)
    assert planned(config, "complex", "central")["rounds"] == 12


def test_the_grid_holds_every_combination_once_in_a_fixed_order():
    blocks = [
        {"networks": ["complex"], "arms": ["federated", "central"], "epsilons": [8, "inf"], "seeds": [0, 1]},
        {
            "networks": ["complex"],
            "arms": ["federated"],
            "epsilons": ["8.0", 1, math.inf, "unclipped"],
            "seeds": [1],
        },
    ]
    config = load_config(merged(paper(), {"runs": blocks}), SCHEMA)
    runs = run_names(config)
    assert len(runs) == len(set(runs)) == 8 + 2
    assert runs[0] == RunName("complex", "federated", "8", 0)
    assert runs[-2:] == [RunName("complex", "federated", "1", 1), RunName("complex", "federated", "unclipped", 1)]
    assert run_names(config) == runs


@pytest.mark.parametrize(
    ("value", "text"), [(8, "8"), (8.0, "8"), ("8", "8"), (0.5, "0.5"), (".inf", None), ("inf", "inf"), (1e-3, "0.001")]
)
def test_an_epsilon_has_one_text(value, text):
    if text is None:
        with pytest.raises(UserError, match="above zero, inf or unclipped"):
            epsilon_label(value)
    else:
        assert epsilon_label(value) == text


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"trainign": {}}, ["Unknown key 'trainign' at the top level", "Did you mean 'training'?"]),
        ({"training": {"cilp": 1}}, ["Unknown key 'cilp' at training", "Did you mean 'clip'?"]),
        ({"training": {"zzz": 1}}, ["Unknown key 'zzz' at training", "Known keys: images_per_patient"]),
        ({"networks": {"complex": {"width": [8]}}}, ["'width' at networks.complex", "Did you mean 'widths'?"]),
        (
            {"arms": {"federatd": {"expected_patients": 1}}},
            ["arms.federatd: expected exactly one of rounds and epochs", "Did you mean 'federated'?"],
        ),
        ({"arms": {"no way": {"expected_patients": 1}}}, ["arms", "'no way'"]),
        ({"arms": {"central": {"threat": "lokal"}}}, ["arms.central.threat: expected one of local", "'local'?"]),
        ({"arms": {"central": {"epoch": 1}}}, ["'epoch' at arms.central", "Did you mean 'epochs'?"]),
        (
            {"cohort": {"source": "downlaod"}},
            ["cohort.source: expected one of", "'downlaod'", "Did you mean 'download'?"],
        ),
        ({"partition": {"by": "scaner"}}, ["partition.by", "Did you mean 'scanner'?"]),
        ({"networks": {"complex": {"activation": "conjmish"}}}, ["networks.complex.activation", "'conj_mish'?"]),
        ({"privacy": {"noise": "on"}}, ["privacy.noise: expected one of seeded, os; found 'on'"]),
        ({"privacy": {"delta": 0}}, ["privacy.delta: 0"]),
        ({"training": {"clip": "much"}}, ["training.clip: expected number; found 'much'"]),
        ({"shards": 2.5}, ["shards: expected integer; found 2.5"]),
        ({"training": None}, ["training: expected object; found None"]),
        ({"cohort": {"name": "a/b"}}, ["cohort.name", "'a/b'"]),
        (
            {"networks": {"complex": {"groups": 7}}},
            ["networks.complex: Expected every width to be a multiple of groups=7"],
        ),
        ({"networks": {"complex": {"domain": "image"}}}, ["networks.complex: ", "slices have no phase"]),
        ({"cohort": {"source": "folder"}}, ["cohort.folder: expected a folder exactly where cohort.source is folder"]),
        ({"cohort": {"folder": "x"}}, ["cohort.folder: ", "found 'x' with source download"]),
        ({"arms": {"central": {"rounds": 5}}}, ["arms.central: expected exactly one of rounds and epochs"]),
        ({"arms": {"central": {"epochs": None}}}, ["arms.central: expected exactly one of rounds and epochs"]),
        (
            {"arms": {"federated": {"expected_patients": 45}}},
            ["arms.federated.expected_patients: expected at most the 44 training patients", "found 45"],
        ),
        (
            {"networks": {"complex": {"training": {"expected_patients": 45}}}},
            ["networks.complex.training.expected_patients: expected at most the 44 training patients", "found 45"],
        ),
        ({"networks": {"complex": {"training": {"participation": "al"}}}}, ["Did you mean 'all'"]),
        (
            {"arms": {"central": {"expected_patients": 484.5}}, "runs": [RUN | {"arms": ["central"]}]},
            ["arms.central.expected_patients: expected at most the 484 training patients", "found 484.5"],
        ),
        ({"partition": {"nodes": 485}}, ["partition: ", "found 484 patients for 485 nodes"]),
        ({"partition": {"by": "scanner"}}, ["partition: ", "Expected 11 numbers in scanner_patients"]),
        ({"partition": {"validation_patients": 25}}, ["partition.validation_patients: 275 test patients", "of 266"]),
        (
            {"cohort": {"source": "simulated"}, "slices": {"count": 25}},
            ["slices.count: ", "the 24 axial slices", "found 25"],
        ),
    ],
)
def test_a_fault_names_the_key_what_was_found_and_the_nearest_valid_one(change, parts):
    message = faults(change)
    for part in parts:
        assert part in message
    assert "has 1 fault(s)" in message or "partition" in parts[0]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"networks": ["complx"]}, ["runs.0.networks: no network 'complx'. Did you mean 'complex'?"]),
        ({"epsilons": ["infinite"]}, ["runs.0.epsilons: Expected epsilon above zero", "found 'infinite'"]),
        ({"epsilons": [0]}, ["runs.0.epsilons", "found 0"]),
        ({"epsilons": [math.nan]}, ["runs.0.epsilons", "found nan"]),
        ({"arms": ["federal"]}, ["runs.0.arms: the arm 'federal' has no section in arms.", "'federated'?"]),
        ({"seeds": [-1]}, ["runs.0.seeds.0: -1"]),
        ({"seeds": []}, ["runs.0.seeds"]),
        ({"seed": [1]}, ["Unknown key 'seed' at runs.0", "Did you mean 'seeds'?"]),
    ],
)
def test_a_fault_in_the_grid_names_its_block(change, parts):
    message = faults({"runs": [paper()["runs"][0] | change]})
    for part in parts:
        assert part in message


HEAD = {"participation": "all", "images_per_patient": 8}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (
            {"inversion": {"kinds": [{"network": "complx"}]}},
            "kinds.0.network: no network 'complx'. Did you mean 'complex'",
        ),
        ({"inversion": {"kinds": [{"network": "linear"}]}}, "kinds.0.network: expected a network of family complex"),
        (
            {"inversion": {"kinds": [{"network": "complex", "epsilons": [0]}]}},
            "kinds.0.epsilons: Expected epsilon above",
        ),
        ({"candidates": {"networks": ["sampled"]}}, "networks.0: expected a network trained with participation all"),
        ({"candidates": {"networks": ["odd"]}}, "networks.0: expected a multiple of 4 images"),
        ({"candidates": {"networks": ["idle"]}}, "networks.0: expected a network of runs; found idle"),
        (
            {"candidates": {"networks": ["read"]}},
            "networks.0: expected a network of domain kspace or features; found read",
        ),
        ({"candidates": {"networks": ["attacked"], "patients": 50}}, "expected at most the 50 patients; found 100"),
    ],
)
def test_attacks_name_networks_that_they_can_attack(change, part):
    networks = {
        "sampled": {},
        "odd": {"training": HEAD | {"images_per_patient": 6}},
        "idle": {"training": HEAD},
        "attacked": {"training": HEAD},
        "linear": {"family": "linear"},
        "read": {"family": "head", "domain": "layers", "training": HEAD},
    }
    runs = [paper()["runs"][0] | {"networks": ["complex", "sampled", "odd", "attacked", "read"]}]
    message = faults({"networks": networks, "runs": runs, "audit": change})
    assert part in message
    assert "has 1 fault(s)" in message


def test_an_arm_of_the_grid_needs_a_section():
    config = paper()
    del config["arms"]["federated"]
    assert "runs.0.arms: the arm 'federated' has no section in arms" in faults({}, config)


def test_a_missing_section_is_named():
    config = paper()
    del config["arms"]
    assert "'arms' is a required property" in faults({}, config)


def test_all_faults_come_in_one_message():
    message = faults({"trainign": {}, "shards": 0, "training": {"cilp": 1, "clip": "x"}})
    assert "has 4 fault(s)" in message
    assert [line[:4] for line in message.splitlines()[1:]] == [f"  {number}." for number in range(1, 5)]


def test_numbers_that_the_command_line_leaves_as_text_are_numbers():
    """Snakemake parses nested values of --config without types."""
    change = {
        "partition": {"nodes": "3"},
        "training": {"learning_rate": "2e-3", "clip": "0.5"},
        "cohort": {"simulated": {"grid": ["32", "32", "8"]}},
        "networks": {"complex": {"widths": ["16", "32"]}},
        "arms": {"central": {"rounds": "7", "epochs": None}, "federated": {"epochs": "2.5"}},
        "runs": [{"networks": ["complex"], "arms": ["central"], "epsilons": ["8", "0.5"], "seeds": ["0", "1"]}],
    }
    config = load_config(merged(paper(), change), SCHEMA)
    assert config["partition"]["nodes"] == 3
    assert config["training"]["learning_rate"] == 2e-3
    assert config["cohort"]["simulated"]["grid"] == [32, 32, 8]
    assert config["networks"]["complex"]["widths"] == [16, 32]
    assert config["arms"]["central"]["rounds"] == 7
    assert config["arms"]["federated"]["epochs"] == 2.5
    assert [run.epsilon for run in run_names(config)] == ["8", "8", "0.5", "0.5"]
    assert run_names(config)[0].seed == 0


@pytest.mark.parametrize("value", [math.inf, math.nan, ".inf", "nan"])
@pytest.mark.parametrize("key", ["clip", "learning_rate", "drop_factor"])
def test_numbers_must_be_finite(key, value):
    assert f"training.{key}" in faults({"training": {key: value}})


def test_by_scanner_the_declared_sizes_must_add_up():
    scanners = {"scanners": 11, "scanner_patients": [44] * 11}
    change = {"cohort": {"source": "simulated", "simulated": scanners}, "partition": {"by": "scanner"}}
    assert declared_nodes(load_config(merged(paper(), change), SCHEMA), "federated") == [44] * 11
    scanners["scanner_patients"] = [44] * 10 + [43]
    message = faults(change)
    assert "scanner_patients" in message
    assert "484" in message
    assert "483" in message


FOLDER = {"name": "mine", "cohort": {"source": "folder", "folder": "/data/task"}}
MINE = {"cohort": {"name": "mine", "unit": "record"}, "privacy": {"noise": "os", **MANY}}


def test_a_folder_takes_over_nothing_from_the_simulated_cohort_of_the_default():
    """Laid over config.yaml, a folder would have its cohort's name, seeded noise, and one record a patient."""
    message = faults(FOLDER, default())
    assert "has 5 fault(s)" in message
    for part in (
        "cohort.name: expected a name of its own for a cohort with source folder; found 'phantom-no-atlas'",
        "cohort.unit: expected record for a cohort with source folder, or to be told",
        "cohort.patient_key, or say cohort.one_record_per_patient: true",
        "privacy.noise: expected os for real patients; found seeded",
        "say cohort.real_patients: false",
        "runs: expected 1 on real patients",
        "privacy.without_noise: ",
    ):
        assert part in message
    config = load_config(merged(merged(default(), FOLDER), MINE), SCHEMA)
    assert config["cohort"]["real_patients"] is True


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"cohort": {"name": "phantom"}}, "cohort.name: "),
        ({"cohort": {"name": "phantom-mine"}}, "cohort.name: "),
        ({"cohort": {"unit": "patient"}}, "cohort.unit: "),
        ({"privacy": {"noise": "seeded"}}, "privacy.noise: "),
        ({"privacy": {"noise": "seeded"}, "cohort": {"real_patients": True}}, "privacy.noise: "),
    ],
)
@pytest.mark.parametrize("source", ["folder", "download"])
def test_each_mix_of_real_and_simulated_is_one_fault(source, change, part):
    base = merged(merged(default(), FOLDER), MINE)
    base["cohort"] |= {"source": source, "folder": "/data/task" if source == "folder" else None}
    load_config(base, SCHEMA)
    message = faults(change, base)
    assert part in message
    assert source in message or part == "privacy.noise: "
    assert "has 1 fault(s)" in message


@pytest.mark.parametrize(
    "declared",
    [
        {"cohort": {"unit": "patient", "patient_key": "key.tsv"}},
        {"cohort": {"unit": "patient", "one_record_per_patient": True}},
        {"cohort": {"real_patients": False}, "privacy": {"noise": "seeded"}},
        {"cohort": {"real_patients": "false", "one_record_per_patient": "true", "unit": "patient"}},
        {"cohort": {"real_patients": False}},
        {"cohort": {"real_patients": "null"}},
    ],
)
def test_what_is_declared_for_a_folder_is_taken(declared):
    """As text too, which is what the command line leaves of true and false."""
    config = load_config(merged(merged(merged(default(), FOLDER), MINE), declared), SCHEMA)
    assert config["cohort"]["real_patients"] is (declared["cohort"].get("real_patients") not in (False, "false"))
    assert load_config(config, SCHEMA) == config


def test_the_decathlons_patients_are_real_and_have_several_scans():
    assert "cohort.real_patients: expected true for the Decathlon" in faults({"cohort": {"real_patients": False}})
    message = faults({"privacy": {"noise": "seeded"}})
    assert "privacy.noise: expected os" in message
    assert "real_patients: false" not in message
    assert "cohort.one_record_per_patient: expected false" in faults(
        {"cohort": {"unit": "patient", "one_record_per_patient": True}}
    )
    load_config(merged(paper(), {"cohort": {"unit": "patient", "patient_key": "key.tsv"}}), SCHEMA)


def test_a_simulated_cohort_has_no_real_patients():
    assert "cohort.real_patients: expected false" in faults({"cohort": {"real_patients": True}}, default())
    assert load_config(default(), SCHEMA)["cohort"]["real_patients"] is False


@pytest.mark.parametrize("value", ["maybe", "True ", 1])
def test_a_truth_is_true_or_false(value):
    assert "cohort.real_patients: expected boolean or null" in faults({"cohort": {"real_patients": value}})


def test_single_images_are_refused_wherever_the_settings_come_from():
    head = {"family": "head", "domain": "features", "components": 4, "training": {"estimator": "class_means"}}
    simulated = {"cohort": {"name": "phantom-x", "source": "simulated"}, "privacy": {"noise": "seeded"}}
    everywhere = {**simulated, "training": {"unit": "image"}, "networks": {"own": head}}
    assert "training.unit: expected patient for estimator class_means of own" in faults(everywhere)
    many = {**simulated, "training": {"images_per_patient": 100}, "networks": {"own": {"training": {"unit": "image"}}}}
    assert "training.images_per_patient: expected at most the 80 images" in faults(many)


def test_settings_without_effect_are_refused():
    assert "arms.federated.colluding: expected only with threat" in faults({"arms": {"federated": {"colluding": 3}}})
    head = {"family": "head", "domain": "features", "training": {"estimator": "class_means", "learning_rate": 0.1}}
    assert "learning_rate: expected with estimator descent only" in faults({"networks": {"own": head}})


PHASE = {
    "task": {"name": "phase_mnist"},
    "cohort": {"name": "digits", "source": "download", "real_patients": False, "unit": "record"},
}


def test_another_task_than_brain_sequences_is_checked_by_itself():
    assert "cohort.source: expected download or folder for task phase_mnist" in faults(
        {"task": PHASE["task"]}, default()
    )
    named = {**PHASE, "task": {"name": "phase_mnist", "settings": {"composite": "twice"}}}
    assert "task: Expected composite" in faults(named)
    unknown = faults({**PHASE, "task": {"name": "unheard_of"}})
    assert "task: Expected the name of a task in the plan, found 'unheard_of'" in unknown
    assert "engine: expected simulation for task phase_mnist; found flower." in faults({**PHASE, "engine": "flower"})
    assert "task.settings: expected none for brain_sequences" in faults({"task": {"settings": {"slices": 3}}})


def test_a_plan_names_its_task_with_its_settings():
    run = RunName("complex", "federated", "8", 0)
    once = merged(PHASE, {"task": {"settings": {"composite": "once"}}})
    assert plan_of(load_config(merged(paper(), once), SCHEMA), run).task == {"name": "phase_mnist", "composite": "once"}
    brain = {"name": "brain_sequences", "slices": 20, "size": 32}
    assert plan_of(load_config(default(), SCHEMA), run).task == {**brain, "decision": "slice"}
    by_itself = merged(default(), {"slices": {"decision": "image"}})  # plans of earlier versions stay what they were
    assert plan_of(load_config(by_itself, SCHEMA), run).task == brain


@pytest.mark.parametrize("scenario", ["config.yaml", "papers/complex_dp/scenarios/phase_mnist.yaml"])
def test_a_configuration_is_checked_without_pytorch(scenario):
    """Snakemake checks it at every start, on clusters once for each job, and PyTorch takes seconds to import."""
    code = (
        "import sys, yaml; from pathlib import Path; from zetadp.config.checked import load_config, overlay; "
        "from zetadp.config.configured import hospital_sizes\n"
        f"given = yaml.safe_load(Path({str(ROOT / 'config.yaml')!r}).read_text())\n"
        f"overlay(given, yaml.safe_load(Path({str(ROOT / scenario)!r}).read_text()))\n"
        f"hospital_sizes(load_config(given, Path({str(SCHEMA)!r}))); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
