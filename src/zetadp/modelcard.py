"""The model card: what a trained model is, how well it does, what its guarantee says, and what it is not for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from zetadp.epsilon import UNCLIPPED, epsilon_label, epsilon_shown, epsilon_value, rounded_up
from zetadp.privacy.threat import SECURE_AGGREGATION, arm_shown
from zetadp.rendering import INFINITY_NOTE, MISSING, SEEDED_NOTE, SIMULATION_NOTE, UNCLIPPED_NOTE, Sheet, to_markdown
from zetadp.tables import is_simulated

if TYPE_CHECKING:
    from collections.abc import Mapping

FALSE_ALARM = 0.01
USAGE = "zetadp predict MODEL VOLUME"


def model_card(
    run: Mapping[str, Any],
    network: Mapping[str, Any],
    privacy: Mapping[str, Any],
    metrics: Mapping[str, Any],
    cohort_label: str,
    usage: str = USAGE,
) -> str:
    """Return the card of one trained model as Markdown.

    Parameters
    ----------
    run
        ``network``, ``arm``, ``epsilon`` and ``seed`` of the run.
    network
        Settings of the network, printed as they are.
    privacy
        Content of the run's ``privacy.json``.
    metrics
        Content of the run's ``metrics.json``; its ``environment`` becomes the provenance.
    cohort_label
        Name of the cohort; that of a simulated one contains the word "simulated".
    usage
        Command that applies the model to one volume.
    """
    epsilon = epsilon_label(run["epsilon"])
    chosen = epsilon if epsilon == UNCLIPPED else f"ε = {epsilon_shown(epsilon)}"
    sequences = [str(name) for name in metrics["sequences"]]
    arm = arm_shown(run["arm"], _threat(privacy)["model"])
    return "\n".join(
        [
            f"# MRI sequence classifier: {run['network']}, {arm}, {chosen}, seed {run['seed']}",
            "",
            *_task(sequences),
            *_data(cohort_label, metrics),
            *_privacy(epsilon, privacy),
            *_accuracy(metrics),
            *_limits(cohort_label),
            "## Use",
            "",
            "```sh",
            usage,
            "```",
            "",
            *_provenance(run, network, metrics),
        ]
    )


def _task(sequences: list[str]) -> list[str]:
    return [
        "## Task",
        "",
        f"A complex-valued network tells which pulse sequence ({', '.join(sequences)}) an axial slice of a brain MRI "
        "comes from, given the slice’s k-space.",
        "",
        "**Input.** A 4-D NIfTI volume in the layout of the Medical Segmentation Decathlon: axes x, y, z and sequence. "
        "It is preprocessed as in training: canonical orientation, centre slices along the axial axis, area resize, "
        "centred unitary 2-D Fourier transform, whitening of each image by its own statistics. The settings travel "
        "with the model.",
        "",
        "**Output.** For each slice the name of the sequence and its probability.",
        "",
    ]


def _data(cohort_label: str, metrics: Mapping[str, Any]) -> list[str]:
    return [
        "## Data",
        "",
        f"Cohort: {cohort_label}. Tested on {metrics['images']} images of {metrics['patients']} patients "
        "who took no part in training.",
        *([SIMULATION_NOTE] if is_simulated(cohort_label) else []),
        "",
    ]


def _privacy(epsilon: str, privacy: Mapping[str, Any]) -> list[str]:
    """State the guarantee in plain words, or that there is none."""
    lines = ["## Privacy", ""]
    if math.isinf(epsilon_value(epsilon)):
        reason = UNCLIPPED_NOTE if epsilon == UNCLIPPED else INFINITY_NOTE
        return [*lines, reason, "The model may reveal who took part in training.", ""]
    unit, spent, delta = privacy["unit"], float(privacy["epsilon"]), float(privacy["delta"])
    seeded = privacy["noise_source"] == "seeded"
    threat = _threat(privacy)
    seen = "every model of the training"
    if threat["model"] == SECURE_AGGREGATION:
        seen += " but no single message"
    curve = privacy["trade_off"]
    # The statement's own curve: one (epsilon, delta) pair alone would allow every participant to be found at epsilon 8.
    power = 1 - dict(zip(curve["false_alarms"], curve["misses"], strict=True))[FALSE_ALARM]
    power = math.ceil(1000 * power - 1e-9) / 1000
    whole = privacy.get("of_all_images")
    plain = (
        f"In plain words{', for the ideal mechanism that this run simulates' if seeded else ''}: an attack that sees "
        f"{seen}, and wrongly accuses {FALSE_ALARM:.0%} of those who gave no data, finds at most "
        f"{power:.1%} of those who did (ε = {rounded_up(spent)}, δ = {delta:g}, per {unit}). Further models of the "
        f"same data add to this."
    )
    if whole is not None:
        # Odds for one image would be read as odds for a person.
        true = float(whole["epsilon"])
        plain = (
            f"ε = {rounded_up(spent)} is per image, a weaker guarantee that protects no {whole['unit']}: behind one "
            f"stand {whole['images']} images. The true ε per {whole['unit']} at δ = {delta:g} is "
            f"{rounded_up(true) if math.isfinite(true) else 'none'}."
        )
    lines += [
        str(privacy["statement"]),
        "",
        plain,
        "",
        *([SEEDED_NOTE, ""] if seeded else []),
        *([str(threat["assumes"]), ""] if "assumes" in threat else []),
    ]
    if threat["model"] == SECURE_AGGREGATION:
        alone = rounded_up(threat["epsilon_single_messages"])
        lines.append(f"- ε against a server that sees single messages, as nothing here prevents: {alone}")
    lines.append(f"- ε by the Renyi accountant, as a check: {rounded_up(privacy['epsilon_rdp'])}")
    for name, node in privacy["nodes"].items():
        lines.append(f"- {name}: {node['population']} {unit}s, ε = {rounded_up(node['epsilon'])}")
    return [*lines, *(f"- Not covered: {text}." for text in privacy.get("does_not_cover", ())), ""]


def _threat(privacy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the statement says of the threat model."""
    found: Mapping[str, Any] = privacy.get("threat", {"model": "local"})
    return found


def _accuracy(metrics: Mapping[str, Any]) -> list[str]:
    interval = metrics["accuracy_interval"]
    between = "no interval: it needs at least two test patients"
    if interval["low"] is not None:
        low, high = _percent(interval["low"]), _percent(interval["high"])
        between = f"{interval['level']:.0%} interval over patients: {low} to {high} %"
    columns = ("recall", "precision", "f1")
    rows = tuple(
        (name, *(_percent(metrics["per_class"][name][column]) for column in columns)) for name in metrics["sequences"]
    )
    return [
        "## Accuracy",
        "",
        f"- By image: {_percent(metrics['accuracy'])} % ({between}). A guess reaches {_percent(1 / len(rows))} %.",
        f"- By volume, majority vote over its slices: {_percent(metrics['volume_accuracy'])} %.",
        f"- Macro F1: {_percent(metrics['macro_f1'])} %.",
        "",
        to_markdown(Sheet("By sequence, in %", ("sequence", *columns), rows)),
    ]


def _limits(cohort_label: str) -> list[str]:
    origin = (
        "- Trained and tested on a simulated cohort: nothing is known of its accuracy on patients."
        if is_simulated(cohort_label)
        else "- Tested on held-out data of the same source: other scanners, sites and pathologies may do worse."
    )
    return [
        "## Limits",
        "",
        "- Not for clinical use, and not a medical device.",
        origin,
        "- It always answers with one of its sequences, also for a volume that holds none of them.",
        "- Test and validation patients have no privacy guarantee.",
        "",
    ]


def _provenance(run: Mapping[str, Any], network: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[str]:
    environment = {"commit": None, **metrics.get("environment", {})}
    return [
        "## Provenance",
        "",
        f"- run: {run['network']}/{run['arm']}/eps-{epsilon_label(run['epsilon'])}/seed-{run['seed']}",
        *(f"- network, {key}: {value}" for key, value in network.items()),
        *(f"- {key}: {'unknown' if value is None else value}" for key, value in sorted(environment.items())),
        "",
    ]


def _percent(fraction: float | None) -> str:
    return MISSING if fraction is None else f"{100 * fraction:.2f}"
