"""Contradictions between keys of a configuration that are each valid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

from zetadp.base.epsilon import CONSENT, epsilon_label, epsilon_value
from zetadp.base.validation import UserError, did_you_mean
from zetadp.config.configured import (
    BRAIN,
    EVERYBODY,
    declared_nodes,
    has_real_patients,
    images_of_a_patient,
    needs_backbone,
    network_of,
    run_names,
    task_content,
    threat_of,
    training_of,
    unit_of,
)
from zetadp.core.settings import DIRECTION, GAUSSIAN, NO_EXACT_DIRECTION
from zetadp.nn.settings import AT_ONCE, DESCENT, MIXED_ROWS, STUDY, NetworkSettings
from zetadp.privacy.threat import SECURE_AGGREGATION

SIMULATED_NAME = "phantom"
"""Beginning of the names of simulated cohorts. Other cohorts need other names, so that their ledgers are separate."""


def contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield contradictions between keys that are each valid."""
    for name in config["networks"]:
        try:
            NetworkSettings(**network_of(config, name))
        except ValueError as error:
            yield f"networks.{name}: {error}"
        yield from _contradictions_of_estimator(f"networks.{name}", config["networks"][name])
    yield from _contradictions_of_images(config)
    cohort = config["cohort"]
    yield from _contradictions_of_cohort(config)
    yield from _contradictions_of_task(config)
    if config["engine"] == "flower" and config["privacy"]["noise"] != "os":
        yield "privacy.noise: expected os with engine flower: between hospitals seeded noise protects nobody."
    yield from _contradictions_of_release(config)
    attacked = config["audit"]["membership"]["network"]
    if attacked in config["networks"] and needs_backbone(config, attacked):
        yield f"audit.membership.network: expected a network that needs no public backbone; found {attacked}."
    yield from _contradictions_of_attacks(config)
    depth, count = cohort["simulated"]["grid"][2], config["slices"]["count"]
    if cohort["source"] == "simulated" and depth < count:
        yield f"slices.count: expected at most the {depth} axial slices of cohort.simulated.grid; found {count}."
    yield from _contradictions_of_runs(config)
    yield from _contradictions_of_arms(config)
    yield from _contradictions_of_trainings(config)
    wanted = config["partition"]["nodes"] * config["partition"]["validation_patients"]
    if wanted >= cohort["test_patients"]:
        yield (
            f"partition.validation_patients: {wanted} test patients would be watched, of {cohort['test_patients']}; "
            "none would be left to test."
        )


def _contradictions_of_runs(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield names in the grid of runs that do not exist."""
    for number, block in enumerate(config["runs"]):
        for name in block["networks"]:
            if name not in config["networks"]:
                yield f"runs.{number}.networks: no network {name!r}.{did_you_mean(name, config['networks'])}"
        for name in block["arms"]:
            if name not in config["arms"]:
                hint = did_you_mean(name, config["arms"])
                yield f"runs.{number}.arms: the arm {name!r} has no section in arms.{hint}"
        for value in block["epsilons"]:
            try:
                epsilon_value(value)
            except UserError as error:
                yield f"runs.{number}.epsilons: {error}"


def _contradictions_of_trainings(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield trainings on real patients that nobody wrote down: each costs the same patients again."""
    if not has_real_patients(config):
        return
    privacy, valid = config["privacy"], []
    for block in config["runs"]:
        with suppress(UserError):  # another check reports it
            valid.append({**block, "epsilons": [epsilon_label(value) for value in block["epsilons"]]})
    runs = run_names({"runs": valid})
    if len(runs) > privacy["trainings"]:
        yield (
            f"runs: expected {privacy['trainings']} on real patients, as privacy.trainings says; found {len(runs)}. "
            f"Each of them costs the same patients again. Choose fewer, or write privacy.trainings: {len(runs)}."
        )
    bare = [run for run in runs if not math.isfinite(epsilon_value(run.epsilon))]
    if bare and privacy["without_noise"] != CONSENT:
        yield (
            f"privacy.without_noise: expected the sentence '{CONSENT}' for runs with epsilon {bare[0].epsilon} on real "
            f"patients; found {privacy['without_noise']!r}."
        )


def _contradictions_of_arms(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield requirements of arms and networks that the nodes cannot meet."""
    # What no run uses may stem from config.yaml, where it was meant for another cohort.
    used = {
        (arm, name)
        for block in config["runs"]
        for arm, name in product(block["arms"], block["networks"])
        if arm in config["arms"] and name in config["networks"]
    }
    for arm, settings in config["arms"].items():
        if (settings["rounds"] is None) == (settings["epochs"] is None):
            hint = did_you_mean(arm, set(config["arms"]) - {arm})
            yield f"arms.{arm}: expected exactly one of rounds and epochs.{hint}"
        try:
            smallest = min(declared_nodes(config, arm))
        except UserError as error:
            yield f"partition: {error}"
            continue
        if threat_of(config, arm) == SECURE_AGGREGATION:
            yield from _contradictions_of_sums(config, arm)
        elif settings["colluding"] != 1:
            yield (
                f"arms.{arm}.colluding: expected only with threat {SECURE_AGGREGATION}; found {settings['colluding']}. "
                "Leave it out."
            )
        wanted: dict[str, Mapping[str, Any]] = {}
        for name in sorted(name for each, name in used if each == arm):
            own = config["networks"][name]["training"]
            if own.get("participation") != EVERYBODY and own.get("estimator", DESCENT) == DESCENT:
                wanted |= (
                    {f"networks.{name}.training": own} if "expected_patients" in own else {f"arms.{arm}": settings}
                )
        for place, given in wanted.items():
            if given["expected_patients"] > smallest:
                yield (
                    f"{place}.expected_patients: expected at most the {smallest} training patients of the smallest "
                    f"node of arm {arm}; found {given['expected_patients']}."
                )


def _contradictions_of_task(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings that only the brain-sequences task can have, and errors that the task itself reports."""
    task = config["task"]
    if task["name"] == BRAIN:
        if task["settings"]:
            yield f"task.settings: expected none for {BRAIN}, whose settings are slices; found {task['settings']}."
        return
    from zetadp.core.task import task_of

    try:
        task_of(task_content(config))
    except (UserError, ValueError) as error:
        yield f"task: {error}"
    if config["engine"] != "simulation":
        yield f"engine: expected simulation for task {task['name']}; found {config['engine']}."


def _contradictions_of_estimator(where: str, network: Mapping[str, Any]) -> Iterator[str]:
    """Yield training settings that the estimator does not support."""
    own = network["training"]
    estimator = own.get("estimator", DESCENT)
    if estimator == DESCENT and "feature_norm" in own:
        yield (
            f"{where}.training.feature_norm: expected with estimators other than {DESCENT}, which clips gradients "
            f"alone; found with {DESCENT}. Leave it out."
        )
    if estimator != MIXED_ROWS and "mixing" in own:
        yield f"{where}.training.mixing: expected with estimator {MIXED_ROWS} only; found with {estimator}."
    if estimator == DESCENT:
        return
    if network["family"] != "head":
        yield (
            f"{where}.training.estimator: expected {DESCENT} for family {network['family']}; found {estimator}, which "
            "is for family head."
        )
    if network["taper"]:
        yield f"{where}.taper: expected 0 with estimator {estimator}; found {network['taper']}. Leave it out."
    for key in ("learning_rate", "drop_after", "drop_factor", "optimiser", "momentum", "averaged"):
        if key in own:
            yield f"{where}.training.{key}: expected with estimator {DESCENT} only; found with {estimator}."
    if own.get("rounds", 1) != 1:
        yield (
            f"{where}.training.rounds: expected 1 for estimator {estimator}, whose nodes send one message; found "
            f"{own['rounds']}. Leave it out."
        )
    if own.get("participation", EVERYBODY) != EVERYBODY or "expected_patients" in own:
        yield (
            f"{where}.training: expected participation {EVERYBODY} and no expected_patients for estimator {estimator}, "
            "in which all patients take part. Leave both out."
        )


def _contradictions_of_release(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings that nodes which send directions cannot have."""
    sending = {name for name in config["networks"] if training_of(config, name)["release"] == DIRECTION}
    for name in sorted(sending):
        own = config["networks"][name]["training"]
        where = f"networks.{name}.training.release" if "release" in own else "training.release"
        for key, value, why in (
            ("privacy.noise", config["privacy"]["noise"], {"os": NO_EXACT_DIRECTION}),
            ("engine", config["engine"], {"flower": NO_EXACT_DIRECTION}),
            ("estimator", own.get("estimator", DESCENT), dict.fromkeys(AT_ONCE, "it sends no gradient")),
        ):
            if value in why:
                yield f"{where}: expected {GAUSSIAN} for {name} with {key} {value}; found {DIRECTION}: {why[value]}."
    for number, block in enumerate(config["runs"]):
        arms = [arm for arm in block["arms"] if arm in config["arms"]]
        if sending & set(block["networks"]) and any(threat_of(config, arm) == SECURE_AGGREGATION for arm in arms):
            yield (
                f"runs.{number}: expected release {GAUSSIAN} for arms with threat {SECURE_AGGREGATION}; found "
                f"{DIRECTION}, of which no sum is accounted for."
            )


def _contradictions_of_attacks(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield networks and tasks that attacks on messages cannot attack."""
    kinds, candidates = config["audit"]["inversion"]["kinds"], config["audit"]["candidates"]
    wanted = [(f"audit.inversion.kinds.{number}.network", kind["network"]) for number, kind in enumerate(kinds)]
    wanted += [(f"audit.candidates.networks.{number}", name) for number, name in enumerate(candidates["networks"])]
    if wanted and config["task"]["name"] != BRAIN:
        yield f"{wanted[0][0]}: expected no attack on messages for task {config['task']['name']}."
    for where, name in wanted:
        if name not in config["networks"]:
            yield f"{where}: no network {name!r}.{did_you_mean(name, config['networks'])}"
        elif "inversion" in where:
            network = config["networks"][name]
            if (network["family"], network["domain"], network["start"]) != ("complex", "kspace", "random"):
                yield f"{where}: expected a network of family complex, domain kspace and start random; found {name}."
        else:
            yield from _contradictions_of_candidates(config, where, name)
    for number, kind in enumerate(kinds):
        for value in kind["epsilons"]:
            try:
                epsilon_value(value)
            except UserError as error:
                yield f"audit.inversion.kinds.{number}.epsilons: {error}"
    most = max(candidates["candidates"])
    if most > candidates["patients"]:
        yield f"audit.candidates.candidates: expected at most the {candidates['patients']} patients; found {most}."


def _contradictions_of_candidates(config: Mapping[str, Any], where: str, name: str) -> Iterator[str]:
    """Yield reasons why candidates cannot be named from the messages of a network's training."""
    network, training = config["networks"][name], training_of(config, name)
    own = network["training"]
    expected = {
        "participation": (own.get("participation"), EVERYBODY),
        "estimator": (own.get("estimator", DESCENT), DESCENT),
        "release": (training["release"], GAUSSIAN),
        "unit": (unit_of(config, name), "patient"),
    }
    for key, (found, right) in expected.items():
        if found != right:
            yield f"{where}: expected a network trained with {key} {right}; found {name} with {found}."
    if network["domain"] not in {"kspace", "features"}:
        yield f"{where}: expected a network of domain kspace or features; found {name} of {network['domain']}."
    images, most = training["images_per_patient"], images_of_a_patient(config)
    sequences = most // int(config["slices"]["count"])
    if images % sequences or images > most:
        yield (
            f"{where}: expected a multiple of {sequences} images a patient, at most {most}, all of which are in every "
            f"gradient; found {images}."
        )
    if not any(name in block["networks"] for block in config["runs"]):
        yield f"{where}: expected a network of runs; found {name}, which no block of runs names."


def _contradictions_of_images(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield reasons why single images cannot be the unit of a run."""
    found: dict[str, None] = {}
    for name, network in config["networks"].items():
        if unit_of(config, name) != "image":
            continue
        own, settings = network["training"], training_of(config, name)
        unit, drawn = (
            f"networks.{name}.training.{key}" if key in own else f"training.{key}"
            for key in ("unit", "images_per_patient")
        )
        if config["cohort"]["source"] != "simulated":
            found[
                f"{unit}: expected patient for a cohort with source {config['cohort']['source']}; found image. A "
                "guarantee per image does not protect patients, so it is there for simulated cohorts only."
            ] = None
        if own.get("estimator", DESCENT) != DESCENT:
            found[f"{unit}: expected patient for estimator {own['estimator']} of {name}; found image."] = None
        if network["domain"] == STUDY:
            found[
                f"{unit}: expected patient for {name} of domain {STUDY}, where one image changes the features of all "
                "of its patient's images; found image."
            ] = None
        images = images_of_a_patient(config)
        if settings["images_per_patient"] > images:
            found[
                f"{drawn}: expected at most the {images} images of a patient; found {settings['images_per_patient']}."
            ] = None
    yield from found


def _contradictions_of_sums(config: Mapping[str, Any], arm: str) -> Iterator[str]:
    """Yield reasons why an arm cannot have secure aggregation, which is only simulated."""
    simulated = "secure_aggregation is simulated only: no protocol is implemented that would hide single messages"
    if has_real_patients(config):
        yield f"arms.{arm}.threat: expected local or central for real patients; {simulated}."
    elif config["privacy"]["noise"] != "seeded":
        yield (
            f"arms.{arm}.threat: expected local or central with privacy.noise {config['privacy']['noise']}; "
            f"{simulated}."
        )
    if config["engine"] != "simulation":
        yield f"arms.{arm}.threat: expected local or central with engine {config['engine']}; {simulated}."
    nodes, colluding = config["partition"]["nodes"], config["arms"][arm]["colluding"]
    if colluding >= nodes:
        yield (
            f"arms.{arm}.colluding: expected fewer than the {nodes} nodes of partition.nodes, so that somebody is left "
            f"to add noise; found {colluding}."
        )


def _simulates(config: Mapping[str, Any]) -> bool:
    """Return whether the task can simulate patients (its attribute ``simulates``)."""
    if config["task"]["name"] == BRAIN:
        return True
    from zetadp.core.task import task_of

    try:
        return bool(getattr(task_of(task_content(config)), "simulates", False))
    except (UserError, ValueError):
        return True  # the mistake is in its settings, and another check reports it


def _contradictions_of_cohort(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings that a cohort inherits from another one by mistake.

    A scenario changes config.yaml, whose cohort is simulated. Keys that the scenario leaves out keep the values of that
    cohort. A name, a unit or a source of noise that is right for a simulation must not apply to patients unnoticed.
    """
    cohort, noise, real = config["cohort"], config["privacy"]["noise"], has_real_patients(config)
    source, task = cohort["source"], config["task"]["name"]
    if source == "simulated" and not _simulates(config):
        yield f"cohort.source: expected download or folder for task {task}, which has no simulation; found simulated."
        return
    if (source == "folder") != (cohort["folder"] is not None):
        yield (
            f"cohort.folder: expected a folder exactly where cohort.source is folder; found {cohort['folder']!r} with "
            f"source {source}."
        )
    if source == "simulated":
        if real:
            yield "cohort.real_patients: expected false for a simulated cohort; found true."
        return
    if source == "download" and task == BRAIN and not real:
        yield "cohort.real_patients: expected true for the Decathlon's patients; found false."
    if cohort["name"].startswith(SIMULATED_NAME):
        yield (
            f"cohort.name: expected a name of its own for a cohort with source {source}; found {cohort['name']!r}. "
            f"Names that begin with {SIMULATED_NAME} stand for simulated cohorts, whose ledgers they keep."
        )
    if source == "download" and task == BRAIN and cohort["one_record_per_patient"]:
        yield "cohort.one_record_per_patient: expected false: the Decathlon has several scans of some patients."
    elif cohort["unit"] != "record" and not (cohort["patient_key"] or cohort["one_record_per_patient"]):
        yield (
            f"cohort.unit: expected record for a cohort with source {source}, or to be told which records belong to "
            f"one person; found {cohort['unit']}. Name the table in cohort.patient_key, or say "
            "cohort.one_record_per_patient: true if no two records are of one person."
        )
    if real and noise != "os":
        declare = " If they are not real, say cohort.real_patients: false." if source == "folder" else ""
        yield f"privacy.noise: expected os for real patients; found {noise}, which protects nobody.{declare}"
