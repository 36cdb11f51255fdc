"""The configuration: checked strictly, defaults filled in, and turned into the settings of the library."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml

from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.settings import TrainingSettings
from zetadp.epsilon import epsilon_label, epsilon_value
from zetadp.estimators import DESCENT
from zetadp.nn.settings import NetworkSettings
from zetadp.privacy.threat import CENTRAL_HOLDER, SECURE_AGGREGATION, threat_of_arm
from zetadp.validation import UserError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from zetadp.privacy.threat import Threat


SIMULATED_NAME = "phantom"
"""Names of simulated cohorts begin with it; other patients need another name, and have ledgers of their own."""

BRAIN = "brain_sequences"
"""The task that has slices, a cohort in the Decathlon's layout and a public backbone."""

EVERYBODY = "all"
"""A participation: every patient takes part in every round."""

PLANNED = ("rounds", "participation", "expected_patients", "unit")
"""What a network's own training settings say in place of its arm's, and who is drawn."""

_TRUTHS = {"true": True, "false": False}


def load_config(config: Mapping[str, Any], schema_path: Path) -> dict[str, Any]:
    """Check a configuration against its schema and return it with defaults filled in.

    Raises
    ------
    UserError
        One message that lists every fault: the key, what was expected, what was found, and the nearest valid key.
    """
    from jsonschema import Draft202012Validator

    schema = yaml.safe_load(schema_path.read_text(encoding="utf-8"))
    filled: dict[str, Any] = _with_defaults(deepcopy(dict(config)), schema, schema)
    validator = Draft202012Validator(schema)
    faults = [message for error in validator.iter_errors(filled) for message in _messages(error)]
    faults += _not_finite({key: value for key, value in filled.items() if key != "runs"}, "")
    if not faults:
        faults = list(_contradictions(filled))
    if faults:
        lines = "\n".join(f"  {number}. {fault}" for number, fault in enumerate(faults, start=1))
        msg = f"The configuration has {len(faults)} fault(s):\n{lines}"
        raise UserError(msg)
    filled["cohort"]["real_patients"] = has_real_patients(filled)
    for block in filled["runs"]:
        block["epsilons"] = [epsilon_label(value) for value in block["epsilons"]]
    return filled


def overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Lay one configuration over another, in place, as Snakemake does: section by section."""
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            overlay(below[key], value)
        else:
            below[key] = value


def has_real_patients(config: Mapping[str, Any]) -> bool:
    """Tell whether the volumes are of real people: as declared, else of every cohort that is not simulated."""
    cohort = config["cohort"]
    declared = cohort["real_patients"]
    return cohort["source"] != "simulated" if declared is None else bool(declared)


def run_names(config: Mapping[str, Any]) -> list[RunName]:
    """Return every run of the grid once, in a fixed order."""
    runs: dict[RunName, None] = {}
    for block in config["runs"]:
        for network, arm, epsilon, seed in product(*(block[key] for key in ("networks", "arms", "epsilons", "seeds"))):
            runs[RunName(network, arm, epsilon, int(seed))] = None
    return list(runs)


def threat_of(config: Mapping[str, Any], arm: str) -> Threat:
    """Return the threat model of an arm."""
    return threat_of_arm(arm, config["arms"][arm]["threat"])


def hospital_sizes(config: Mapping[str, Any]) -> list[int]:
    """Return the declared number of training patients of each hospital, which no arm changes."""
    from zetadp.federation.partition import PartitionSettings, node_sizes

    cohort = config["cohort"]
    scanners = cohort["simulated"]["scanner_patients"]
    return node_sizes(PartitionSettings(**config["partition"]), cohort["train_patients"], scanners)


def declared_nodes(config: Mapping[str, Any], arm: str) -> list[int]:
    """Return the declared number of training patients of each node of an arm."""
    central = threat_of(config, arm) == "central"
    return [config["cohort"]["train_patients"]] if central else hospital_sizes(config)


def network_of(config: Mapping[str, Any], network: str) -> dict[str, Any]:
    """Return what defines a network, without how it is trained."""
    return {key: value for key, value in config["networks"][network].items() if key != "training"}


def needs_backbone(config: Mapping[str, Any], network: str) -> bool:
    """Tell whether a network starts from the public backbone or takes its features."""
    settings = config["networks"][network]
    return bool(settings["start"] == "public" or settings["domain"] == "features")


def training_of(config: Mapping[str, Any], network: str) -> dict[str, Any]:
    """Return how a network is trained: the general settings, and its own in their place."""
    settings = {**config["training"], **config["networks"][network]["training"]}
    return {key: value for key, value in settings.items() if key not in PLANNED}


def unit_of(config: Mapping[str, Any], network: str) -> str:
    """Return who is drawn, clipped and hidden in a network's training: patient, or image."""
    return str(config["networks"][network]["training"].get("unit", config["training"]["unit"]))


def task_content(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task as a plan names it."""
    task = config["task"]
    slices = {"slices": config["slices"]["count"], "size": config["slices"]["size"]} if task["name"] == BRAIN else {}
    return {"name": task["name"], **slices, **task["settings"]}


def images_of_a_patient(config: Mapping[str, Any]) -> int:
    """Return the declared number of images of a record."""
    from zetadp.cohort.decathlon import SEQUENCES

    return len(SEQUENCES) * int(config["slices"]["count"])


def plan_of(config: Mapping[str, Any], run: RunName) -> Plan:
    """Return the plan of a run, before its noise is known.

    Rounds are as given, or epochs * N / R for the node of median size. Where single images are drawn, populations and
    expected numbers count images, expected as many as of patients. An estimator in closed form has one round of all
    patients.
    """
    from zetadp.federation.partition import node_name

    network, arm = run.network, run.arm
    sizes, threat = declared_nodes(config, arm), threat_of(config, arm)
    own, given = config["networks"][network]["training"], config["arms"][arm]
    at_once = own.get("estimator", DESCENT) != DESCENT
    everybody = at_once or own.get("participation") == EVERYBODY
    wanted = float(own.get("expected_patients", given["expected_patients"]))
    expected = [float(size) if everybody else wanted for size in sizes]
    rounds = 1 if at_once else own.get("rounds", given["rounds"])
    if rounds is None:
        rounds = max(1, round(float(given["epochs"]) * median(sizes) / median(expected)))
    training = TrainingSettings.from_section(
        training_of(config, network), rounds=int(rounds), noise=config["privacy"]["noise"]
    )
    unit, images = unit_of(config, network), 1
    if unit == "image":
        images = images_of_a_patient(config)
        sizes = [size * images for size in sizes]
        expected = [each * training.images_per_patient for each in expected]
    names = [CENTRAL_HOLDER] if threat == "central" else [node_name(number) for number in range(len(sizes))]
    return Plan(
        run=run,
        network=NetworkSettings(**network_of(config, network)),
        training=training,
        nodes=tuple(map(NodeConstants, names, sizes, expected)),
        delta=config["privacy"]["delta"],
        cohort=config["cohort"]["name"],
        task=task_content(config),
        partition={**config["partition"], "sizes": hospital_sizes(config)},
        unit="image" if unit == "image" else "patient",
        units_of_a_person=images,
        threat=threat,
        colluding=given["colluding"] if threat == SECURE_AGGREGATION else None,
        update=config["federation"]["update"],
    )


def _with_defaults(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:  # noqa: ANN401  (JSON is untyped)
    """Fill in the schema's defaults, recursively."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if isinstance(value, dict):
        for key, part in schema.get("properties", {}).items():
            if key not in value and "default" in part:
                value[key] = deepcopy(part["default"])
        rest = schema.get("additionalProperties")
        for key, item in value.items():
            part = schema.get("properties", {}).get(key, rest)
            if isinstance(part, dict):
                value[key] = _with_defaults(item, part, root)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [_with_defaults(item, schema["items"], root) for item in value]
    if isinstance(value, str):
        kinds = schema.get("type", [])
        return _from_text(value, [kinds] if isinstance(kinds, str) else kinds)
    return value


def _from_text(text: str, kinds: list[str]) -> float | str | bool | None:
    """Return the number or truth that a text stands for where the schema wants one and no text.

    On the command line (``--config 'partition={nodes: 3}'``) Snakemake leaves nested values as text, and YAML takes
    ``2e-3``, without a point, for text.
    """
    if "string" in kinds:
        return text
    if "boolean" in kinds and text in _TRUTHS:
        return _TRUTHS[text]
    for parse in (int, float) if {"integer", "number"} & set(kinds) else ():
        try:
            return parse(text)
        except ValueError:
            continue
    return None if text == "null" and "null" in kinds else text


def _not_finite(value: Any, where: str) -> Iterator[str]:  # noqa: ANN401  (JSON is untyped)
    """Yield every number that is infinite or NaN, which no comparison in a schema catches."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _not_finite(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: expected a finite number; found {value}."


def _messages(error: Any) -> Iterator[str]:  # noqa: ANN401  (jsonschema has no types)
    """Say in plain words what a validation error means."""
    where = ".".join(str(part) for part in error.absolute_path) or "the top level"
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        for key in sorted(set(error.instance) - set(known)):
            hint = did_you_mean(key, known) or f" Known keys: {', '.join(known)}."
            yield f"Unknown key {key!r} at {where}.{hint}"
    elif error.validator == "enum":
        hint = did_you_mean(str(error.instance), map(str, error.validator_value))
        choices = ", ".join(map(str, error.validator_value))
        yield f"{where}: expected one of {choices}; found {error.instance!r}.{hint}"
    elif error.validator == "type":
        kinds = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
        yield f"{where}: expected {' or '.join(kinds)}; found {error.instance!r}."
    else:
        yield f"{where}: {error.message}."


def _contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong between keys that are each right."""
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
    attacked = config["audit"]["membership"]["network"]
    if attacked in config["networks"] and needs_backbone(config, attacked):
        yield f"audit.membership.network: expected a network that needs no public backbone; found {attacked}."
    depth, count = cohort["simulated"]["grid"][2], config["slices"]["count"]
    if cohort["source"] == "simulated" and depth < count:
        yield f"slices.count: expected at most the {depth} axial slices of cohort.simulated.grid; found {count}."
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
        wanted = {f"arms.{arm}": settings} | {
            f"networks.{name}.training": network["training"] for name, network in config["networks"].items()
        }
        for place, given in wanted.items():
            if given.get("expected_patients", 0) > smallest:
                yield (
                    f"{place}.expected_patients: expected at most the {smallest} training patients of the smallest "
                    f"node of arm {arm}; found {given['expected_patients']}."
                )
    wanted = config["partition"]["nodes"] * config["partition"]["validation_patients"]
    if wanted >= cohort["test_patients"]:
        yield (
            f"partition.validation_patients: {wanted} test patients would be watched, of {cohort['test_patients']}; "
            "none would be left to test."
        )


def _contradictions_of_task(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what another task than brain sequences cannot have, and what it refuses itself."""
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
    """Yield what a training says that its estimator does not do."""
    own = network["training"]
    estimator = own.get("estimator", DESCENT)
    if estimator == DESCENT:
        if "feature_norm" in own:
            yield (
                f"{where}.training.feature_norm: expected only with estimator class_means or least_squares; found with "
                f"{DESCENT}, which clips gradients alone. Leave it out."
            )
        return
    if network["family"] != "head":
        yield (
            f"{where}.training.estimator: expected {DESCENT} for family {network['family']}; found {estimator}, which "
            "is for family head."
        )
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


def _contradictions_of_images(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield why single images cannot be the unit of a training."""
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
        images = images_of_a_patient(config)
        if settings["images_per_patient"] > images:
            found[
                f"{drawn}: expected at most the {images} images of a patient; found {settings['images_per_patient']}."
            ] = None
    yield from found


def _contradictions_of_sums(config: Mapping[str, Any], arm: str) -> Iterator[str]:
    """Yield why an arm cannot have secure aggregation, of which there is a simulation only."""
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


def _contradictions_of_cohort(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a cohort takes from another one by mistake.

    A scenario is laid over config.yaml, whose cohort is simulated: what it leaves out is that cohort's. A name, a unit
    or a source of noise that is right for a simulation must not be taken over by patients without a word.
    """
    cohort, noise, real = config["cohort"], config["privacy"]["noise"], has_real_patients(config)
    source, task = cohort["source"], config["task"]["name"]
    if source == "simulated" and task != BRAIN:
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
    elif cohort["unit"] == "patient" and not (cohort["patient_key"] or cohort["one_record_per_patient"]):
        yield (
            f"cohort.unit: expected record for a cohort with source {source}, or to be told which records belong to "
            "one person; found patient. Name the table in cohort.patient_key, or say cohort.one_record_per_patient: "
            "true if no two records are of one person."
        )
    if real and noise != "os":
        declare = " If they are not real, say cohort.real_patients: false." if source == "folder" else ""
        yield f"privacy.noise: expected os for real patients; found {noise}, which protects nobody.{declare}"


def experiment_name(config_path: Path, scenario_path: Path | None) -> str:
    """Return the name of the experiment that a configuration, overlaid by a scenario, describes."""
    name = None
    for path in filter(None, (config_path, scenario_path)):
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            msg = f"Cannot read {path}: {error}."
            raise UserError(msg) from error
        name = content.get("name", name)
    if name is None:
        msg = f"Expected a name in {config_path}, found none."
        raise UserError(msg)
    return str(name)
