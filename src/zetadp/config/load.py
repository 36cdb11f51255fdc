"""Read the configuration of an experiment, and refuse every fault in it at once.

A rule on one section stands in its class, and one on a plan in the plan. Rules across sections stand here. Each is a
function whose parameters are the sections that it needs. It runs where these have no fault of their own, and yields
what is wrong, each with the path of its key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

from zetadp.accounting.threat import NoiseSource
from zetadp.audit.settings import Audit
from zetadp.base.epsilon import CONSENT
from zetadp.base.reading import read
from zetadp.base.strict_yaml import parse_yaml
from zetadp.base.usercode import package_code
from zetadp.base.validation import UserError, did_you_mean, refuse
from zetadp.config.experiment import Config, runs_of
from zetadp.config.networks import EVERYBODY, Network, Training
from zetadp.config.sections import Arm, Block, CohortSection, Federation, Privacy, TaskSection
from zetadp.nn.settings import AT_ONCE, DESCENT, MIXED_ROWS
from zetadp.training.partition import PartitionSettings, node_sizes
from zetadp.training.settings import GAUSSIAN, IMAGE
from zetadp.training.task import Task, pipeline_task_of

WHERE = "in the configuration"
Rule = Callable[..., Iterator[str]]
_RULES: list[Rule] = []
RESERVED = "phantom"
"""Beginning of the names of cohorts that the workflow simulates. Other cohorts need other names, and other ledgers."""
SOURCES = {"simulated": "simulates", "download": "downloads"}
"""Attribute that a task has whose rules can make a cohort of a source."""


def load_config(content: Mapping[str, Any]) -> Config:
    """Return the configuration that some content holds.

    Raises
    ------
    UserError
        One message that lists every fault: the key, what was expected, what was found, and the nearest valid key. Where
        keys and sections have none, it lists what the plans of the runs refuse.
    """
    sections, faults = {}, []
    hints = get_type_hints(Config, include_extras=True)
    for key in content:
        if key not in hints:
            hint = did_you_mean(str(key), hints) or f" Known keys: {', '.join(hints)}."
            faults.append(f"Unknown key {key!r} at the top level.{hint}")
    for section in fields(Config):
        if section.name in content:
            result = read(hints[section.name], content[section.name], section.name)
            faults += result.faults
            if not result.faults:
                sections[section.name] = result.value
        elif section.default_factory is not MISSING:
            sections[section.name] = section.default_factory()
        elif section.default is not MISSING:
            sections[section.name] = section.default
        else:
            faults.append(f"{section.name}: expected this section, which has no default; found none.")
    if "task" in sections and (wrong := sections["task"].checked[1]):
        faults += wrong
        del sections["task"]
    refuse([*faults, *contradictions(sections)], WHERE)
    config = Config(**sections)
    refuse(config.faults_of_plans(), WHERE)
    return config


def read_overlaid(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the content of configuration files, each overlaid on those before it, without checking keys or values."""
    content: dict[str, Any] = {}
    for path in paths:
        try:
            section = parse_yaml(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"Cannot read the configuration {path}: {error}.") from error
        if not isinstance(section, dict):
            raise UserError(f"Expected sections in the configuration {path}, found {type(section).__name__}.")
        overlay(content, section)
    return content


def overlay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Overlay one configuration on another, in place and section by section, as Snakemake does."""
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            overlay(below[key], value)
        else:
            below[key] = value


def experiment_name(config_path: Path, scenario_path: Path | None) -> str:
    """Return the name of the experiment that a configuration, overlaid by a scenario, describes."""
    content = read_overlaid([path for path in (config_path, scenario_path) if path is not None])
    if "name" not in content:
        raise UserError(f"Expected a name in {config_path}, found none.")
    return str(content["name"])


def contradictions(sections: Mapping[str, Any]) -> Iterator[str]:
    """Yield the contradictions between sections that are valid by themselves."""
    for rule in _RULES:
        parameters = list(inspect.signature(rule).parameters)
        if sections.keys() >= set(parameters):
            # Networks that share a wrong setting find the same fault.
            yield from dict.fromkeys(rule(*(sections[name] for name in parameters)))


def _rule(function: Rule) -> Rule:
    _RULES.append(function)
    return function


OF_ESTIMATORS = {
    **dict.fromkeys(("learning_rate", "drop_after", "drop_factor", "optimiser", "momentum", "averaged"), (DESCENT,)),
    **dict.fromkeys(("rounds", "participation", "expected_patients"), (DESCENT,)),
    "feature_norm": AT_ONCE,
    "mixing": (MIXED_ROWS,),
}
"""Training settings of some estimators alone. Those but descent have one round, in which all patients take part."""


@_rule
def _estimators(networks: Mapping[str, Network]) -> Iterator[str]:
    """Yield training settings that the estimator does not support."""
    for name, network in networks.items():
        for key, estimators in OF_ESTIMATORS.items():
            if key in network.training and network.estimator not in estimators:
                yield (
                    f"networks.{name}.training.{key}: expected with estimator {' or '.join(estimators)} only; "
                    f"found with {network.estimator}. Leave it out."
                )


@_rule
def _images(networks: Mapping[str, Network], training: Training, cohort: CohortSection) -> Iterator[str]:
    """Yield runs whose unit is the image, where it does not protect anybody."""
    for name, network in networks.items():
        if network.all_training(training).unit == IMAGE and cohort.source != "simulated":
            section = f"networks.{name}.training" if "unit" in network.training else "training"
            yield (
                f"{section}.unit: expected patient for a cohort with source {cohort.source}; found image. A guarantee "
                "per image does not protect patients, so it is there for simulated cohorts only."
            )


@_rule
def _source(cohort: CohortSection, task: TaskSection, privacy: Privacy) -> Iterator[str]:
    """Yield settings that a cohort inherits from another one by mistake.

    A scenario changes config.yaml, whose cohort is simulated. Keys that the scenario leaves out keep the values of that
    cohort. A name, a unit or a source of noise that is right for a simulation must not apply to patients unnoticed.
    """
    source, real = cohort.source, cohort.real
    if source != "folder" and not _has(SOURCES[source], task):
        other = (name for name, attribute in SOURCES.items() if _has(attribute, task))
        possible = ["folder", *other]
        yield f"cohort.source: expected {' or '.join(possible)} for task {task.name}; found {source}."
        return
    if (source == "folder") != (cohort.folder is not None):
        yield (
            f"cohort.folder: expected a folder exactly where cohort.source is folder; found {cohort.folder!r} with "
            f"source {source}."
        )
    if source == "simulated":
        if real:
            yield "cohort.real_patients: expected false for a simulated cohort; found true."
        return
    if cohort.name.startswith(RESERVED):
        yield (
            f"cohort.name: expected a name of its own for a cohort with source {source}; found {cohort.name!r}. "
            f"Names that begin with {RESERVED} are reserved for cohorts that the workflow simulates, and so are their "
            "ledgers."
        )
    if cohort.unit != "record" and not (cohort.patient_key or cohort.one_record_per_patient):
        yield (
            f"cohort.unit: expected record for a cohort with source {source}, or to be told which records belong to "
            f"one person; found {cohort.unit}. Name the table in cohort.patient_key, or say "
            "cohort.one_record_per_patient: true if no two records are of one person."
        )
    if real and privacy.noise != NoiseSource.OS:
        declare = " If they are not real, say cohort.real_patients: false." if source == "folder" else ""
        yield f"privacy.noise: expected os for real patients; found {privacy.noise}, which protects nobody.{declare}"


@_rule
def _cohort(cohort: CohortSection, task: TaskSection) -> Iterator[str]:
    """Yield what the task itself finds wrong with the cohort."""
    if (faults := getattr(_task_or_none(task), "cohort_faults", None)) is not None:
        with package_code():
            yield from faults(cohort)


@_rule
def _trainings(cohort: CohortSection, privacy: Privacy, runs: Sequence[Block]) -> Iterator[str]:
    """Yield runs on real patients beyond the declared number: each costs the same patients again."""
    if not cohort.real:
        return
    run_names = runs_of(runs)
    if len(run_names) > privacy.trainings:
        yield (
            f"runs: expected {privacy.trainings} on real patients, as privacy.trainings says; found {len(run_names)}. "
            f"Each of them costs the same patients again. Choose fewer, or write privacy.trainings: {len(run_names)}."
        )
    without_noise = [run.target for run in run_names if not run.target.private]
    if without_noise and privacy.without_noise is None:
        yield (
            f"privacy.without_noise: expected the sentence '{CONSENT}' for runs with epsilon {without_noise[0]} on "
            "real patients; found none."
        )


@_rule
def _task(task: TaskSection) -> Iterator[str]:
    """Yield errors that the task itself reports."""
    try:
        pipeline_task_of(task.planned)
    except UserError as error:
        yield f"task: {error}"


@_rule
def _engine(engine: str, task: TaskSection, privacy: Privacy) -> Iterator[str]:
    """Yield what a federation of processes cannot have."""
    if engine != "simulation" and not _has("site", task):
        yield f"engine: expected simulation for task {task.name}; found {engine}."
    if engine == "flower" and privacy.noise != NoiseSource.OS:
        yield "privacy.noise: expected os with engine flower: across hospitals, seeded noise protects nobody."


@_rule
def _nodes(engine: str, federation: Federation, partition: PartitionSettings) -> Iterator[str]:
    """Yield a round of a real federation that needs more nodes than there are."""
    if engine == "flower":
        try:
            federation.least_of(partition.nodes)
        except UserError as error:
            yield f"federation.{error.key}: {error}"


@_rule
def _names(runs: Sequence[Block], networks: Mapping[str, Network], arms: Mapping[str, Arm]) -> Iterator[str]:
    """Yield names in the grid of runs that do not exist."""
    for number, block in enumerate(runs):
        for name in block.networks:
            if name not in networks:
                yield f"runs.{number}.networks: no network {name!r}.{did_you_mean(name, networks)}"
        for name in block.arms:
            if name not in arms:
                yield f"runs.{number}.arms: the arm {name!r} has no section in arms.{did_you_mean(name, arms)}"


@_rule
def _sizes(cohort: CohortSection, partition: PartitionSettings) -> Iterator[str]:
    """Yield sizes of hospitals that the cohort cannot have."""
    of_scanners = cohort.simulated.scanner_patients
    if of_scanners is not None and sum(of_scanners) != cohort.train_patients:
        yield (
            f"cohort.simulated.scanner_patients: expected numbers that add up to the {cohort.train_patients} training "
            f"patients, found {sum(of_scanners)}."
        )
    try:
        node_sizes(partition, cohort.train_patients, cohort.simulated.scanner_patients)
    except UserError as error:
        yield f"partition: {error}"
    try:
        partition.check_watched(cohort.test_patients)
    except UserError as error:
        yield f"partition.{error.key}: {error}"


@_rule
def _attacks(audit: Audit, networks: Mapping[str, Network], task: TaskSection) -> Iterator[str]:
    """Yield networks and tasks that attacks cannot attack."""
    kinds = {f"audit.inversion.kinds.{n}.network": kind.network for n, kind in enumerate(audit.inversion.kinds)}
    candidates = {f"audit.candidates.networks.{n}": name for n, name in enumerate(audit.candidates.networks)}
    attacked = kinds | candidates
    if attacked and not _has("attackable", task):
        yield f"{next(iter(attacked))}: expected no attack on messages for task {task.name}."
    for where, name in attacked.items():
        if name not in networks:
            yield f"{where}: no network {name!r}.{did_you_mean(name, networks)}"
        elif where in kinds:
            network = networks[name]
            if (network.family, network.domain, network.start) != ("complex", "kspace", "random"):
                yield f"{where}: expected a network of family complex, domain kspace and start random; found {name}."


@_rule
def _candidates(
    audit: Audit,
    networks: Mapping[str, Network],
    training: Training,
    task: TaskSection,
    runs: Sequence[Block],
) -> Iterator[str]:
    """Yield reasons why candidates cannot be named from the messages of a network's training."""
    attacked: Any = _task_or_none(task)
    if not getattr(attacked, "attackable", False):
        return  # other rules report this
    classes, most = attacked.classes, attacked.items_of_a_record
    for number, name in enumerate(audit.candidates.networks):
        if name not in networks:
            continue
        network, where = networks[name], "audit.candidates.networks"
        settings = network.all_training(training)
        for key, value, expected in (
            ("participation", network.training.get("participation"), EVERYBODY),
            ("estimator", network.estimator, DESCENT),
            ("mechanism", settings.mechanism, GAUSSIAN),
            ("unit", settings.unit, "patient"),
        ):
            if value != expected:
                yield f"{where}.{number}: expected a network trained with {key} {expected}; found {name} with {value}."
        if network.domain not in {"kspace", "features"}:
            value = f"{name} of {network.domain}"
            yield f"{where}.{number}: expected a network of domain kspace or features; found {value}."
        images = settings.images_per_patient
        if images % classes or images > most:
            yield (
                f"{where}.{number}: expected a multiple of {classes} images a patient, at most {most}, all of which "
                f"are in every gradient; found {images}."
            )
        if not any(name in block.networks for block in runs):
            yield f"{where}.{number}: expected a network of runs; found {name}, which no block of runs names."


def _task_or_none(task: TaskSection) -> Task | None:
    """Return a task, or None if its settings are wrong, which another rule reports."""
    with suppress(UserError):
        return task.chosen
    return None


def _has(attribute: str, task: TaskSection) -> bool:
    """Return whether a task has an attribute, such as `attackable`; True if its settings are wrong."""
    chosen = _task_or_none(task)
    return chosen is None or bool(getattr(chosen, attribute, False))
