"""The configuration: what is right is planned as declared, and every fault is refused at the path of its key."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ledger_builder import DELTA, record

from zetadp.account.book import recorded_runs
from zetadp.account.totals import Total
from zetadp.accounting.threat import Sums
from zetadp.base.epsilon import CONSENT, Target
from zetadp.base.reading import schema_of
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.config.experiment import Config
from zetadp.config.load import load_config, overlay
from zetadp.config.networks import Training
from zetadp.report.provenance import cohort_shown
from zetadp.training.plan import Plan

ROOT = Path(__file__).parents[3]
SCENARIOS = sorted([*ROOT.glob("workflow/scenarios/*.yaml"), *ROOT.glob("papers/*/scenarios/*.yaml")])

MANY = {"trainings": 99, "without_noise": CONSENT}
RUN = {"networks": ["complex"], "arms": ["federated"], "epsilons": [1, 3], "seeds": [0]}
HEAD = {"family": "head", "domain": "features", "components": 4}
EVERYBODY = {"participation": "all", "images_per_patient": 8}


def default() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "config.yaml").read_text())


def merged(base: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    """Lay configurations over another."""
    result = deepcopy(base)
    for change in changes:
        overlay(result, deepcopy(change))
    return result


PAPER = {
    "name": "paper",
    "cohort": {"name": "brain", "source": "download", "train_patients": 484, "test_patients": 266},
    "networks": {"complex": {}},
    "arms": {arm: {"expected_patients": 24, "epochs": 500} for arm in ("federated", "central")},
    "privacy": {"noise": "os", **MANY},
    "runs": [RUN],
}
"""The smallest configuration of the paper's cohort."""
SIMULATION = {"cohort": {"name": "phantom-x", "source": "simulated"}}
SIMULATED = merged(PAPER, SIMULATION, {"privacy": {"noise": "seeded"}})
OWN_RUN = merged(PAPER, {"runs": [RUN | {"networks": ["own"]}]})
SUMS = merged(SIMULATED, {"arms": {"mine": {"threat": "masked_sums", "expected_patients": 24, "rounds": 5}}})
PER_IMAGE = merged(SIMULATED, {"networks": {"complex": {"training": {"unit": "image"}}}})
DIRECTED = merged(SUMS, {"networks": {"complex": {"training": {"mechanism": "von_mises_fisher"}}}})
MINE = merged(
    default(),
    {"name": "mine", "cohort": {"name": "mine", "source": "folder", "folder": "/data", "unit": "record"}},
    {"privacy": {"noise": "os", **MANY}},
)
HOSPITAL = merged(
    MINE, {"cohort": {"train_patients": 20, "test_patients": 6}, "partition": {"nodes": 2, "validation_patients": 0}}
)
HOSPITAL |= {"privacy": {"noise": "os"}, "runs": [RUN | {"networks": ["head"], "epsilons": [8]}]}
DIGITS = {
    "task": {"name": "phase_mnist"},
    "cohort": {"name": "digits", "source": "download", "real_patients": False, "unit": "record"},
}
ATTACKED = merged(
    PAPER,
    {
        "networks": {
            "sampled": {},
            "odd": {"training": {"participation": "all", "images_per_patient": 6}},
            "idle": {"training": EVERYBODY},
            "attacked": {"training": EVERYBODY},
            "linear": {"family": "linear"},
            "read": {"family": "head", "domain": "study", "training": EVERYBODY},
        },
        "runs": [RUN | {"networks": ["complex", "sampled", "odd", "attacked", "read"]}],
    },
)


def own(training: dict[str, Any], network: dict[str, Any] = HEAD) -> dict[str, Any]:
    return {"networks": {"own": {**network, "training": training}}}


def grid(**change: Any) -> dict[str, Any]:
    return {"runs": [RUN | change]}


def attack(**change: Any) -> dict[str, Any]:
    return {"audit": change}


def of_digits(**change: Any) -> dict[str, Any]:
    return merged(DIGITS, {"task": {"settings": change}})


AT_ONCE = {"estimator": "class_means"}
FAULTS = [
    # Keys and values of one section, with the nearest valid one
    (PAPER, {"trainign": {}}, "top level", "'training'"),
    (PAPER, {"training": {"zzz": 1}}, "training", "images_per_patient"),
    (PAPER, {"networks": {"complex": {"training": {"learn_rate": 1}}}}, "networks.complex.training", "'learning_rate'"),
    (PAPER, {"networks": {"complex": {"family": "complx"}}}, "networks.complex.family", "'complex'"),
    (PAPER, {"networks": {"complex": {"training": {"participation": "al"}}}},
     "networks.complex.training.participation", "'all'"),
    (PAPER, {"networks": {"9x": {}}}, "networks.9x", ""),
    (PAPER, {"networks": {"complex": {"widths": [0]}}}, "networks.complex.widths.0", ""),
    (PAPER, {"networks": {"complex": {"domain": "image"}}}, "networks.complex", "domain kspace"),
    (PAPER, {"networks": {"complex": {"family": "own"}}}, "networks.complex", ""),
    (PAPER, {"privacy": {"delta": 0}}, "privacy.delta", "0"),
    (PAPER, {"privacy": {"without_noise": "yes"}}, "privacy", CONSENT),
    (PAPER, {"shards": 2.5}, "shards", "2.5"),
    (PAPER, {"shards": True}, "shards", "True"),
    (PAPER, {"training": None}, "training", "None"),
    (PAPER, {"cohort": {"name": "a/b"}}, "cohort.name", "small letters, digits, _, dots"),
    (PAPER, {"cohort": {"name": True}}, "cohort.name", "quotes"),
    (PAPER, {"cohort": {"real_patients": "True "}}, "cohort.real_patients", ""),
    (PAPER, {"cohort": {"real_patients": 1}}, "cohort.real_patients", "1"),
    (PAPER, {"cohort": {"simulated": {"grid": [64, 64]}}}, "cohort.simulated.grid", ""),
    (PAPER, {"audit": {"membership": {"patients": 7}}}, "audit.membership", "7"),
    (PAPER, {"arms": {"central": {"rounds": 5}}}, "arms.central", "exactly one"),
    (PAPER, {"arms": {"central": {"epochs": None}}}, "arms.central", "exactly one"),
    *((PAPER, {"training": {key: value}}, f"training.{key}", "")
      for key, value in (("clip", math.inf), ("learning_rate", math.nan), ("clip", ".inf"), ("clip", "nan"))),
    # The grid of runs
    (PAPER, grid(networks=["complx"]), "runs.0.networks", "'complex'"),
    (PAPER, grid(arms=["federal"]), "runs.0.arms", "'federated'"),
    (PAPER, grid(epsilons=[0]), "runs.0.epsilons.0", "0"),
    (PAPER, grid(seed=[1]), "runs.0", "'seeds'"),
    (PAPER, {"runs": []}, "runs", ""),
    # Sizes of nodes, where a run needs them
    (PAPER, {"arms": {"federated": {"expected_patients": 45}}}, "arms.federated.expected_patients", "44"),
    (PAPER, {"networks": {"complex": {"training": {"expected_patients": 45}}}},
     "networks.complex.training.expected_patients", "44"),
    (PAPER, {"partition": {"nodes": 485, "validation_patients": 0}}, "partition", "484 patients"),
    (PAPER, {"partition": {"nodes": 2, "sizes": [1, 2]}}, "partition", "found 3"),
    (PAPER, {"partition": {"nodes": 2, "sizes": [1, 2], "by": "scanner"}}, "partition", "no partition.sizes"),
    (PAPER, {"partition": {"validation_patients": 25}}, "partition.validation_patients", "275"),
    (PAPER, {"partition": {"nodes": 2, "validation_patients": 133}}, "partition.validation_patients", "266"),
    (PAPER, {"engine": "flower", "federation": {"least_nodes": 12}}, "federation.least_nodes", "at most 11"),
    (PAPER, {"engine": "flower", "federation": {"least_nodes": 11}, "partition": {"nodes": 10}},
     "federation.least_nodes", "at most 10"),
    (SIMULATED, {"task": {"settings": {"slices": 25}}}, "task.settings.slices", "24"),
    # Estimators
    (PAPER, own({**AT_ONCE, "rounds": 20}), "networks.own.training.rounds", "descent"),
    (PAPER, own({"feature_norm": 1.0}), "networks.own.training.feature_norm", "class_means"),
    (PAPER, own({"mixing": {"rows": 3}}), "networks.own.training.mixing", "mixed_rows"),
    (OWN_RUN, own(AT_ONCE, {**HEAD, "taper": 1.0}), "networks.own.taper", "taper 0 with estimator class_"),
    (OWN_RUN, own(AT_ONCE, {}), "networks.own.training.estimator", "class_means"),
    # Masked sums and directions
    (merged(SUMS, grid(arms=["mine"])), {"arms": {"mine": {"sums": {"colluding": 10}}}},
     "arms.mine.sums", "11 - 10 colluding"),
    (SUMS, {"arms": {"federated": {"sums": {"missing": 3}}}}, "arms.federated", "sums only with threat masked_sums"),
    (DIRECTED, {"privacy": {"noise": "os"}}, "networks.complex.training.mechanism", "floating point"),
    (DIRECTED, grid(arms=["mine"]), "arms.mine.threat", "masked_sums"),
    (merged(OWN_RUN, own({**AT_ONCE, "mechanism": "von_mises_fisher"})), {"privacy": {"noise": "seeded"}, **SIMULATION},
     "networks.own.training.mechanism", "class_means"),
    (SUMS, {"training": {"mechanism": "von_mises_fisher"}, "privacy": {"noise": "os"}},
     "training.mechanism", "floating point"),
    (SUMS, {"training": {"mechanism": "von_mises_fischer"}}, "training.mechanism", "Did you mean 'von_mises_fisher'"),
    (PAPER, {"engine": "flower", "privacy": {"noise": "seeded"}}, "privacy.noise", "flower"),
    # Single images
    (merged(PER_IMAGE, {"cohort": {"name": "real", "source": "download"}, "privacy": {"noise": "os"}}), {},
     "networks.complex.training.unit", "protect patients"),
    (PER_IMAGE, {"networks": {"complex": {"training": {"images_per_patient": 84}}}},
     "networks.complex.training.images_per_patient", "80"),
    (merged(PER_IMAGE, grid(networks=["own"])), own({**AT_ONCE, "unit": "image"}),
     "networks.own.training.unit", "class_means"),
    (merged(SIMULATED, grid(networks=["own"])), {**own(AT_ONCE), "training": {"unit": "image"}},
     "training.unit", "class_means"),
    (merged(PER_IMAGE, grid(networks=["own"])), own({"unit": "image"}, {"family": "head", "domain": "study"}),
     "networks.own.training.unit", "study"),
    # What the plans of the grid refuse together
    (SUMS, {"arms": {"federated": {"epochs": 1e308}}}, "arms.federated.epochs", "100000"),
    (PAPER, {"networks": {"complex": {"training": {"rounds": 10**6}}}}, "networks.complex.training.rounds", "100000"),
    (PAPER, own({"estimator": "mixed_rows", "mixing": {"rows": 3, "active": 0.25}}) | grid(networks=["own"]),
     "networks.own.training.mixing.rows", "multiple of 4"),
    (PAPER, own({"estimator": "mixed_rows", "mixing": {"rows": 4, "degree": 60}}) | grid(networks=["own"]),
     "networks.own.training.mixing.degree", "44"),
    (PAPER, {"arms": {"federated": {"expected_patients": 1e-6, "rounds": 5, "epochs": None}}},
     "arms.federated.expected_patients", ""),
    (PAPER, grid(seeds=[2**70]), "runs.0.seeds.0", ""),
    (PAPER, {"privacy": {"delta": 0.5}}, "privacy.delta", "1 / 484"),
    # Whose data: what a cohort of one's own takes over from another one by mistake
    (PAPER, {"cohort": {"source": "folder"}}, "cohort.folder", "None"),
    (PAPER, {"cohort": {"folder": "x"}}, "cohort.folder", "'x'"),
    (MINE, {"cohort": {"name": "phantom"}}, "cohort.name", "phantom"),
    (MINE, {"cohort": {"unit": "patient"}}, "cohort.unit", "patient_key"),
    (MINE, {"privacy": {"noise": "seeded"}}, "privacy.noise", "real_patients: false"),
    (PAPER, {"privacy": {"noise": "seeded"}}, "privacy.noise", "real patients"),
    (PAPER, {"cohort": {"real_patients": False}}, "cohort.real_patients", "Decathlon"),
    (PAPER, {"cohort": {"unit": "patient", "one_record_per_patient": True}}, "cohort.one_record_per_patient", "false"),
    (default(), {"cohort": {"real_patients": True}, "privacy": {"noise": "os", **MANY}},
     "cohort.real_patients", "false"),
    (HOSPITAL, grid(networks=["head"]), "runs", "privacy.trainings: 2"),
    *((HOSPITAL, grid(epsilons=[epsilon]), "privacy.without_noise", CONSENT) for epsilon in ("inf", "unclipped")),
    # Tasks
    (merged(PAPER, DIGITS), {"engine": "flower"}, "engine", "phase_mnist"),
    (merged(PAPER, DIGITS), of_digits(composite="twice"), "task.settings.composite", "drawn, once, none"),
    (merged(PAPER, DIGITS), of_digits(compsite="once"), "task.settings", "'composite'"),
    (merged(PAPER, DIGITS), {"task": {"name": "unheard_of"}}, "task", "'unheard_of'"),
    (default(), {"task": {"name": "phase_mnist"}}, "cohort.source", "phase_mnist"),
    (PAPER, {"task": {"settings": {"slics": 3}}}, "task.settings", "'slices'"),
    (PAPER, {"task": {"settings": {"classes": 3}}}, "task.settings", "slices, spacing"),  # a constant of the task
    (PAPER, {"task": {"name": "classification"}}, "task", "reads data of its own"),
    (merged(OWN_RUN, DIGITS), own({}, {**HEAD, "taper": "noise"}), "networks.own.taper", "phase_mnist"),
    (PER_IMAGE, {"task": {"name": "ecg"}}, "networks.complex.training.unit", "ecg, which declares no number"),
    # Attacks
    (ATTACKED, attack(inversion={"kinds": [{"network": "complx"}]}), "audit.inversion.kinds.0.network", "'complex'"),
    (ATTACKED, attack(inversion={"kinds": [{"network": "linear"}]}), "audit.inversion.kinds.0.network", "kspace"),
    (ATTACKED, attack(inversion={"kinds": [{"network": "complex", "epsilons": [0]}]}),
     "audit.inversion.kinds.0.epsilons.0", "0"),
    (ATTACKED, attack(candidates={"networks": ["sampled"]}), "audit.candidates.networks.0", "participation"),
    (ATTACKED, attack(candidates={"networks": ["odd"]}), "audit.candidates.networks.0", "multiple of 4"),
    (ATTACKED, attack(candidates={"networks": ["idle"]}), "audit.candidates.networks.0", "runs"),
    (ATTACKED, attack(candidates={"networks": ["read"]}), "audit.candidates.networks.0", "study"),
    (ATTACKED, attack(candidates={"networks": ["attacked"], "patients": 50}), "audit.candidates", "100"),
    (PAPER, {"task": {"settings": {"pretraining": {"held_out": 3200}}}}, "task.settings.pretraining", "3200"),
]  # fmt: skip


def refused(base: dict[str, Any], *changes: dict[str, Any]) -> list[str]:
    """Return the lines of a refusal, one a fault."""
    with pytest.raises(UserError) as error:
        load_config(merged(base, *changes))
    return str(error.value).splitlines()[1:]


@pytest.mark.parametrize(("base", "change", "path", "word"), FAULTS)
def test_a_fault_is_named_once_at_its_key(base, change, path, word):
    at = re.compile(rf"\d+\. ({re.escape(path)}: |Unknown key '\w+' at (the )?{re.escape(path)}\.)")
    lines = refused(base, change)
    assert len([line for line in lines if at.match(line) and word in line]) == 1, lines


def test_all_faults_come_in_one_message_and_rules_run_where_their_sections_are_right():
    lines = refused(
        PAPER,
        {
            "trainign": {},
            "shards": 0,
            "training": {"cilp": 1, "clip": "x"},
            "partition": {"validation_patients": 25},
        },
    )
    assert [line[:2] for line in lines] == [f"{number}." for number in range(1, 6)]
    assert "partition.validation_patients" in lines[-1]


@pytest.mark.parametrize("section", ["arms", "networks", "name"])
def test_a_missing_section_is_named(section):
    content = {key: value for key, value in PAPER.items() if key != section}
    assert any(line.startswith(f"1. {section}: ") for line in refused(content))


def test_a_folder_takes_over_nothing_from_the_simulated_cohort_of_the_default():
    """Laid over config.yaml, a folder would have its cohort's name and runs, seeded noise, and one record a patient."""
    lines = refused(default(), {"name": "mine", "cohort": {"source": "folder", "folder": "/data/task"}})
    paths = {line.split()[1].rstrip(":") for line in lines}
    assert paths == {"cohort.name", "cohort.unit", "privacy.noise", "runs", "privacy.without_noise"}
    assert load_config(MINE).cohort.real


@pytest.mark.parametrize(
    "declared",
    [
        {"unit": "patient", "patient_key": "key.tsv"},
        {"unit": "patient", "one_record_per_patient": True},
        {"real_patients": False},
        {"real_patients": "false", "one_record_per_patient": "true", "unit": "patient"},
        {"real_patients": "null"},
    ],
)
def test_what_is_declared_for_a_folder_is_taken(declared):
    """As text too, which is what the command line leaves of true and false."""
    config = load_config(merged(MINE, {"cohort": declared}))
    assert config.cohort.real is (declared.get("real_patients") not in (False, "false"))


@pytest.mark.parametrize("change", [{}, {"privacy": {"without_noise": CONSENT}, **grid(epsilons=["inf"])}])
def test_real_patients_get_one_run_and_one_without_noise_by_consent(change):
    assert len(load_config(merged(HOSPITAL, change)).run_names) == 1


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_over_the_default_is_right(path):
    config = load_config(merged(default(), yaml.safe_load(path.read_text())))
    assert config.run_names
    for run in config.run_names:
        plan = config.plan(run)
        assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
        assert plan.run == run
        # What a model's file will say of its patients: a field, whatever the cohort is called.
        assert plan.simulated == (not config.cohort.real)
    digits_or_words = config.task.name in {"phase_mnist", "speech_commands"}
    assert config.simulated == (not config.cohort.real and not digits_or_words)


@pytest.mark.parametrize("name", ["unsimulated-brains", "volumes-of-a-phantom"])
def test_a_folder_is_simulated_if_it_is_declared_so_whatever_its_name(name):
    declared = {"name": name, "real_patients": False}
    simulated, real = (load_config(merged(MINE, {"cohort": given})) for given in (declared, {"name": name}))
    assert (simulated.simulated, real.simulated) == (True, False)
    shown = [cohort_shown(asdict(config.cohort), simulated=config.simulated) for config in (simulated, real)]
    assert [text.rpartition(", ")[2] for text in shown] == ["simulated", "not simulated"]


def test_each_scenario_has_results_of_its_own_name():
    names = [yaml.safe_load(path.read_text())["name"] for path in SCENARIOS] + [default()["name"]]
    assert SCENARIOS
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("network", "arm", "sizes", "expected", "rounds"),
    [
        ("complex", "federated", [44] * 11, 24.0, 917),  # 500 epochs, at a node of 44 and in one place
        ("complex", "central", [484], 24.0, 10083),
        ("short", "federated", [44] * 11, 44.0, 7),
        ("short", "central", [484], 484.0, 7),
        ("few", "federated", [44] * 11, 11.0, 2000),
        ("once", "federated", [44] * 11, 44.0, 1),
        ("complex", "given", [44] * 11, 24.0, 12),
    ],
)
def test_a_plan_has_the_declared_numbers(network, arm, sizes, expected, rounds):
    networks = {
        "short": {"training": {"rounds": 7, "participation": "all", "optimiser": "sgd", "learning_rate": 0.5}},
        "few": {"training": {"expected_patients": 11}},
        "once": {**HEAD, "training": {"estimator": "class_means"}},
    }
    arms = {"given": {"expected_patients": 24, "rounds": 12}}
    config = load_config(merged(PAPER, {"networks": networks, "arms": arms}))
    plan = config.plan(RunName(network, arm, Target(8), 0))
    assert [(node.population, node.expected) for node in plan.nodes] == [(size, expected) for size in sizes]
    assert plan.training.rounds == rounds
    assert config.training_of("short") == replace(config.training_of("complex"), optimiser="sgd", learning_rate=0.5)
    assert config.performance("short") == config.performance("complex")


OTHER_TRAINING = {
    "images_per_patient": 8,
    "optimiser": "sgd",
    "clip": 0.5,
    "mechanism": "von_mises_fisher",
    "learning_rate": 0.1,
    "drop_after": 0.25,
    "drop_factor": 3,
    "momentum": 0.5,
    "averaged": 0.125,
    "evaluate_every": 7,
    "checkpoint_seconds": 5,
    "chunk": 9,
    "unit": "image",
}


def test_other_values_are_known_of_every_key_of_training():
    assert [field.name for field in fields(Training)] == list(OTHER_TRAINING)


@pytest.mark.parametrize(
    ("key", "everywhere"),
    [
        *((key, True) for key in OTHER_TRAINING),
        *((key, False) for key in OTHER_TRAINING if key != "checkpoint_seconds"),
    ],
)
def test_every_key_of_training_changes_the_training_and_only_that_key(key, everywhere):
    run, change = RunName("complex", "federated", Target(8), 0), {"training": {key: OTHER_TRAINING[key]}}
    change = change if everywhere else {"networks": {"complex": change}}
    before, after = (load_config(merged(SIMULATED, more)) for more in ({}, change))
    assert getattr(after.training_of("complex"), key) == OTHER_TRAINING[key]
    described = [
        {**asdict(plan), **asdict(how), **asdict(plan.training), **asdict(plan.training.optimiser), "optimiser": None}
        for plan, how in ((config.plan(run), config.performance("complex")) for config in (before, after))
    ]
    changed = {name for name in described[0] if described[0][name] != described[1][name]} - {"training"}
    wanted = {"optimiser": {"name"}, "unit": {"unit", "units_of_a_person", "nodes"}}.get(key, {key})
    assert changed == wanted


def test_an_arm_of_any_name_is_held_as_its_threat_model_says():
    arms = {"one": {"threat": "central", "expected_patients": 24, "rounds": 5}, "central": {"threat": "local"}}
    config = load_config(merged(SUMS, {"arms": {**arms, "mine": {"sums": {"colluding": 3}}}}))
    threats = {arm: config.threat(arm) for arm in config.arms}
    assert threats == {"federated": "local", "central": "local", "mine": "masked_sums", "one": "central"}
    assert config.node_sizes("one") == [484]
    assert config.node_sizes("central") == config.node_sizes("mine") == config.hospital_sizes == [44] * 11
    sums = {arm: config.plan(RunName("complex", arm, Target(8), 0)).sums for arm in ("mine", "federated")}
    assert sums == {"mine": Sums(3), "federated": None}
    assert load_config(PAPER).threat("central") == "central"
    assert load_config(PAPER).threat("federated") == "local"


@pytest.mark.parametrize("everywhere", [True, False])
def test_images_are_drawn_as_often_as_patients_times_their_images(everywhere):
    unit = {"unit": "image", "images_per_patient": 8}
    place = {"training": unit} if everywhere else {"networks": {"complex": {"training": unit}}}
    plan = load_config(merged(SIMULATED, place)).plan(RunName("complex", "federated", Target(8), 0))
    assert (plan.unit, plan.units_of_a_person, plan.training.rounds) == ("image", 80, 917)
    assert {(node.population, node.expected) for node in plan.nodes} == {(44 * 80, 24.0 * 8)}


def test_the_grid_holds_every_combination_once_in_a_fixed_order():
    blocks = [
        {"networks": ["complex"], "arms": ["federated", "central"], "epsilons": [8, "inf"], "seeds": [0, 1]},
        {"networks": ["complex"], "arms": ["federated"], "epsilons": ["8.0", 1, math.inf, "unclipped"], "seeds": [1]},
    ]
    runs = load_config(merged(PAPER, {"runs": blocks})).run_names
    assert len(runs) == len(set(runs)) == 8 + 2
    assert runs[0] == RunName("complex", "federated", Target(8), 0)
    assert runs[-2:] == [
        RunName("complex", "federated", Target(1), 1),
        RunName("complex", "federated", Target(math.inf, clipped=False), 1),
    ]


def test_runs_that_were_repeated_under_another_name_are_not_declared_together(tmp_path):
    block = {"networks": ["complex"], "arms": ["federated"], "epsilons": [8], "seeds": [0, 1]}
    for name in ("first", "second"):
        series = load_config(merged(PAPER, {"name": name, "runs": [block]})).series
        record(tmp_path / f"{name}.jsonl", series=asdict(series))
        assert series.runs == 2
    assert Total.of(recorded_runs(tmp_path), DELTA).basis == "odometer"


def test_numbers_that_the_command_line_leaves_as_text_are_numbers_and_stay_as_written():
    """Snakemake parses nested values of --config without types. Plans hold 1 and not 1.0 where that was written."""
    change = {
        "partition": {"nodes": "3"},
        "task": {"settings": {"slices": "4", "spacing": "2"}},
        "training": {"learning_rate": "2e-3", "clip": "1", "averaged": "1.0"},
        "cohort": {"simulated": {"grid": ["32", "32", "8"]}},
        "networks": {"complex": {"widths": ["16", "32"]}},
        "arms": {"central": {"rounds": "7", "epochs": None}, "federated": {"epochs": "2.5"}},
        "runs": [{"networks": ["complex"], "arms": ["central"], "epsilons": ["8", "0.5"], "seeds": ["0", "1"]}],
    }
    config = load_config(merged(PAPER, change))
    assert config.partition.nodes == 3
    task = config.plan(config.run_names[0]).task
    assert json.dumps({key: task[key] for key in ("slices", "spacing")}) == '{"slices": 4, "spacing": 2}'
    training = {name: getattr(config.training, name) for name in ("averaged", "clip", "learning_rate")}
    assert json.dumps(training) == '{"averaged": 1.0, "clip": 1, "learning_rate": 0.002}'
    assert config.cohort.simulated.grid == [32, 32, 8]
    assert config.networks["complex"].widths == (16, 32)
    assert config.arms["central"].rounds == 7
    assert config.arms["federated"].epochs == 2.5
    assert [str(run.target) for run in config.run_names] == ["8", "8", "0.5", "0.5"]
    assert config.run_names[0].seed == 0


def test_by_scanner_a_node_has_the_declared_patients_of_its_scanner():
    scanners = {"scanners": 11, "scanner_patients": [43, *[44] * 9, 45]}
    change = {"cohort": {"simulated": scanners}, "partition": {"by": "scanner"}}
    assert load_config(merged(SIMULATED, change)).node_sizes("federated") == scanners["scanner_patients"]
    (fault,) = refused(SIMULATED, change, {"cohort": {"simulated": {"scanner_patients": [44] * 10 + [45]}}})
    assert fault.startswith("1. cohort.simulated.scanner_patients: expected numbers that add up to the 484")


def test_a_plan_names_its_task_with_its_settings():
    run = RunName("complex", "federated", Target(8), 0)
    once = merged(PAPER, DIGITS, {"task": {"settings": {"composite": "once"}}})
    assert load_config(once).plan(run).task.items() >= {"name": "phase_mnist", "composite": "once"}.items()
    brain = {"name": "brain_sequences", "slices": 20, "spacing": 1.0, "size": 32, "decision": "slice"}
    assert load_config(default()).plan(run).task == brain  # also the defaults: another version may have others
    # The hash of a backbone is part of a plan, but not how it was trained.
    trained_here = merged(default(), {"task": {"settings": {"size": 64, "pretraining": {"held_out": 9}}}})
    assert load_config(trained_here).plan(run).task == {**brain, "size": 64}


def test_editors_and_the_checker_know_the_same_keys():
    made = schema_of(Config)
    assert set(made["properties"]) == set(Config.__dataclass_fields__)
    own_training = made["$defs"]["OwnTraining"]["properties"]
    assert own_training["estimator"]["enum"] == ["descent", "class_means", "mixed_rows"]
    assert own_training["momentum"]["maximum"] < 1
    assert made["$defs"]["Privacy"]["properties"]["delta"]["minimum"] == 1e-10


def test_a_configuration_is_checked_without_pytorch():
    """Snakemake checks it at every start, on clusters once for each job, and PyTorch takes seconds to import."""
    code = (
        "import sys; from pathlib import Path; from zetadp.config.load import load_config, read_overlaid\n"
        "for scenario in ('config.yaml', 'papers/complex_dp/scenarios/phase_mnist.yaml'):\n"
        "    load_config(read_overlaid([Path('config.yaml'), Path(scenario)])).hospital_sizes\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
