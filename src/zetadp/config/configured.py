"""The content of a checked configuration: its runs, nodes and networks, and the plan of each run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from statistics import median
from typing import Any

from zetadp.base.epsilon import epsilon_value, rounded_up
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.settings import TrainingSettings
from zetadp.nn.settings import DESCENT, FEATURES, IMAGE, MIXED_ROWS, NetworkSettings
from zetadp.privacy.threat import CENTRAL_HOLDER, SECURE_AGGREGATION, Threat, threat_of_arm

BRAIN = "brain_sequences"
"""The task that has slices, a cohort in the Decathlon's layout and a public backbone."""

EVERYBODY = "all"
"""Value of ``participation``: every patient takes part in every round."""

PLANNED = ("rounds", "participation", "expected_patients", "unit")
"""Training settings of a network that replace its arm's, including the unit that is drawn."""


def has_real_patients(config: Mapping[str, Any]) -> bool:
    """Return whether the volumes are of real people: as declared; by default, all but simulated cohorts are."""
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


def cost_shown(config: Mapping[str, Any]) -> str:
    """Return what all trainings on real patients may cost each of them together, by adding up; empty without any."""
    runs, cohort, delta = run_names(config), config["cohort"], config["privacy"]["delta"]
    if not has_real_patients(config):
        return ""
    trainings = f"{len(runs)} training{'s' if len(runs) > 1 else ''} on real patients (cohort {cohort['name']})"
    epsilon, delta = math.fsum(epsilon_value(run.epsilon) for run in runs), len(runs) * delta
    cost = f"at most epsilon {rounded_up(epsilon)} at delta {rounded_up(delta)} for one {cohort['unit']}"
    if not (math.isfinite(epsilon) and delta < 1):
        cost = "no guarantee at all"
    return (
        f"{trainings}: {cost}, all together and each made once. What was released before is added to it: "
        "zetadp budget says how much."
    )


def threat_of(config: Mapping[str, Any], arm: str) -> Threat:
    """Return the threat model of an arm."""
    return threat_of_arm(arm, config["arms"][arm]["threat"])


def hospital_sizes(config: Mapping[str, Any]) -> list[int]:
    """Return the declared number of training patients of each hospital, which is the same for all arms."""
    from zetadp.federation.partition import PartitionSettings, node_sizes

    cohort = config["cohort"]
    scanners = cohort["simulated"]["scanner_patients"]
    return node_sizes(PartitionSettings(**config["partition"]), cohort["train_patients"], scanners)


def declared_nodes(config: Mapping[str, Any], arm: str) -> list[int]:
    """Return the declared number of training patients of each node of an arm."""
    central = threat_of(config, arm) == "central"
    return [config["cohort"]["train_patients"]] if central else hospital_sizes(config)


def network_of(config: Mapping[str, Any], network: str) -> dict[str, Any]:
    """Return the settings that define a network, without its training settings."""
    return {key: value for key, value in config["networks"][network].items() if key != "training"}


def needs_backbone(config: Mapping[str, Any], network: str) -> bool:
    """Return whether a network starts from the public backbone or takes its features."""
    settings = config["networks"][network]
    return bool(settings["start"] == "public" or settings["domain"] in FEATURES)


def training_of(config: Mapping[str, Any], network: str) -> dict[str, Any]:
    """Return the training settings of a network: the general ones, replaced by its own where it has some."""
    settings = {**config["training"], **config["networks"][network]["training"]}
    return {key: value for key, value in settings.items() if key not in PLANNED}


def unit_of(config: Mapping[str, Any], network: str) -> str:
    """Return the unit that is drawn, clipped and protected in a network's training: patient or image."""
    return str(config["networks"][network]["training"].get("unit", config["training"]["unit"]))


def task_content(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task as a plan names it."""
    task = config["task"]
    if task["name"] != BRAIN:
        return {"name": task["name"], **task["settings"]}
    slices = config["slices"]
    decided = {"decision": slices["decision"]} if slices["decision"] != IMAGE else {}
    return {"name": BRAIN, "slices": slices["count"], "size": slices["size"], **decided}


def images_of_a_patient(config: Mapping[str, Any]) -> int:
    """Return the declared number of images of a record."""
    from zetadp.mri.decathlon import SEQUENCES

    return len(SEQUENCES) * int(config["slices"]["count"])


def plan_of(config: Mapping[str, Any], run: RunName) -> Plan:
    """Return the plan of a run, before its noise is known.

    The number of rounds is the given one, or epochs * N / R for the node of median size, with N patients of whom R are
    expected in a round. If single images are drawn, the plan's numbers count images: each patient counts as all of the
    patient's images in a population, and as ``images_per_patient`` among the expected. An estimator in closed form has
    one round of all patients. Mixed rows have one round, and the expected number is that of patients in a row, which
    is the degree of mixing.
    """
    from zetadp.federation.partition import node_name

    network, arm = run.network, run.arm
    sizes, threat = declared_nodes(config, arm), threat_of(config, arm)
    own, given = config["networks"][network]["training"], config["arms"][arm]
    estimator = own.get("estimator", DESCENT)
    at_once = estimator != DESCENT
    everybody = at_once or own.get("participation") == EVERYBODY
    wanted = float(own.get("expected_patients", given["expected_patients"]))
    expected = [float(size) if everybody else wanted for size in sizes]
    rounds = 1 if at_once else own.get("rounds", given["rounds"])
    if rounds is None:
        rounds = max(1, round(float(given["epochs"]) * median(sizes) / median(expected)))
    section = training_of(config, network)
    if estimator == MIXED_ROWS:
        section["mixing"], expected = _mixed(own.get("mixing", {}), sizes, run.epsilon, config["privacy"]["delta"])
    training = TrainingSettings.from_section(section, rounds=int(rounds), noise=config["privacy"]["noise"])
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
        simulated=not has_real_patients(config),
        cohort_unit=config["cohort"]["unit"],
    )


def _mixed(own: Mapping[str, Any], sizes: list[int], epsilon: str, delta: float) -> tuple[dict[str, Any], list[float]]:
    """Return the settings of mixing, and the degree for each node: as given, or the best one."""
    from zetadp.release.degree import best_degree, usual_rows

    active = own.get("active", 1)
    rows = own.get("rows") or usual_rows(math.ceil(median(sizes)), active)
    settings = {**{key: value for key, value in own.items() if key != "degree"}, "rows": rows}
    if (degree := own.get("degree")) is not None:
        return settings, [float(degree)] * len(sizes)
    target = epsilon_value(epsilon)
    return settings, [best_degree(target, delta, population=size, rows=rows, share=active) for size in sizes]
