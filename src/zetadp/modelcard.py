"""The model card: what a trained model is, how well it does, what its guarantee says, and what it is not for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from zetadp.epsilon import UNCLIPPED, epsilon_label, epsilon_shown, epsilon_value, rounded_up
from zetadp.notes import INFINITY_NOTE, SEEDED_NOTE, SIMULATION_NOTE, UNCLIPPED_NOTE
from zetadp.privacy.threat import SECURE_AGGREGATION, arm_shown
from zetadp.rendering import MISSING, Sheet, to_markdown
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
        All settings of the network, by the names of `zetadp.nn.models.NetworkSettings`.
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
    sequences = [str(name) for name in metrics["classes"]]
    arm = arm_shown(run["arm"], privacy["threat"]["model"])
    return "\n".join(
        [
            f"# MRI sequence classifier: {run['network']}, {arm}, {chosen}, seed {run['seed']}",
            "",
            *_task(network, sequences),
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


def _task(network: Mapping[str, Any], sequences: list[str]) -> list[str]:
    return [
        "## Task",
        "",
        f"{_described(network)} It tells which pulse sequence ({', '.join(sequences)}) an axial slice of a brain MRI "
        "comes from.",
        "",
        "**Input.** A 4-D NIfTI volume in the layout of the Medical Segmentation Decathlon: axes x, y, z and sequence. "
        "It is preprocessed as in training: canonical orientation, centre slices along the axial axis, area resize, "
        f"{', '.join(_prepared(network))}. The settings travel with the model.",
        "",
        "**Output.** For each slice the name of the sequence and its probability.",
        "",
    ]


def _described(network: Mapping[str, Any]) -> str:
    """Say what kind of network this is, what it sees, and which of its weights were trained from where."""
    family, domain = network["family"], network["domain"]
    if family == "linear":
        values = "pixel of the slice" if domain == "image" else "coefficient of the slice’s k-space"
        return f"A real-valued linear model: softmax regression on the log magnitude of every {values}."
    if family == "head":
        count = f"the first {network['components']}" if network["components"] else "all"
        start = "the public head" if network["start"] == "public" else "random weights"
        return (
            f"A complex-valued linear head on {count} of the complex features that a frozen public backbone computes "
            "from the slice’s k-space. The backbone is a complex-valued convolutional network, trained on public "
            f"simulated patients only; the head alone was trained on the cohort, from {start}."
        )
    seen = "the slice itself" if domain == "image" else "the slice’s k-space"
    if family == "real" and domain == "kspace":
        seen += ", real and imaginary part as two channels"
    if network["transform"] == "fourier":
        seen += ", which its first layer transforms back to the image"
    trained = {
        "all": "All its weights were",
        "norms": "Its head and the scales and shifts of its normalisation were",
        "head": "Its head alone was",
    }.get(network["trained"], "Its head and low-rank updates of its convolutions were")
    start = "the weights of the public backbone" if network["start"] == "public" else "random weights"
    return f"A {family}-valued convolutional network on {seen}. {trained} trained on the cohort, from {start}."


def _prepared(network: Mapping[str, Any]) -> list[str]:
    """Return what is done to a resized slice before the network takes it."""
    steps = ["each image to mean zero and standard deviation one"]
    if network["domain"] != "image":
        steps = ["centred unitary 2-D Fourier transform", "whitening of each image by its own statistics"]
    if network["domain"] == "features":
        steps.append("features of the public backbone")
    if network["family"] == "linear":
        steps.append("logarithm of the magnitude, standardised over the image")
    return steps


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
    threat = privacy["threat"]
    seen = "every model of the training"
    if threat["model"] == SECURE_AGGREGATION:
        seen += " but no single message"
    curve = privacy["trade_off"]
    # The statement's own curve: one (epsilon, delta) pair alone would allow every participant to be found at epsilon 8.
    power = 1 - dict(zip(curve["false_alarms"], curve["misses"], strict=True))[FALSE_ALARM]
    power = math.ceil(1000 * power - 1e-9) / 1000
    whole = privacy["of_all_images"]
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
        str(threat["assumes"]),
        "",
    ]
    if threat["model"] == SECURE_AGGREGATION:
        alone = rounded_up(threat["epsilon_single_messages"])
        lines.append(f"- ε against a server that sees single messages, as nothing here prevents: {alone}")
    lines.append(f"- ε by the Renyi accountant, as a check: {rounded_up(privacy['epsilon_rdp'])}")
    for name, node in privacy["nodes"].items():
        lines.append(f"- {name}: {node['population']} {unit}s, ε = {rounded_up(node['epsilon'])}")
    return [*lines, *(f"- Not covered: {text}." for text in privacy["does_not_cover"]), ""]


def _accuracy(metrics: Mapping[str, Any]) -> list[str]:
    interval, start = metrics["accuracy_interval"], metrics.get("public_start")
    between = "no interval: it needs at least two test patients"
    if interval["low"] is not None:
        low, high = _percent(interval["low"]), _percent(interval["high"])
        between = f"{interval['level']:.0%} interval over patients: {low} to {high} %"
    columns, word, by_volume = ("recall", "precision", "f1"), metrics["called"], metrics.get("volume_accuracy")
    rows = tuple(
        (name, *(_percent(metrics["per_class"][name][column]) for column in columns)) for name in metrics["classes"]
    )
    return [
        "## Accuracy",
        "",
        f"- By image: {_percent(metrics['accuracy'])} % ({between}). A guess reaches {_percent(1 / len(rows))} %.",
        *([f"- By volume, majority vote over its slices: {_percent(by_volume)} %."] if by_volume else []),
        f"- Macro F1: {_percent(metrics['macro_f1'])} %.",
        *([f"- By image, public weights alone, before any private training: {_percent(start)} %."] if start else []),
        "",
        to_markdown(Sheet(f"By {word}, in %", (word, *columns), rows)),
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
    return [
        "## Provenance",
        "",
        f"- run: {run['network']}/{run['arm']}/eps-{epsilon_label(run['epsilon'])}/seed-{run['seed']}",
        *(f"- network, {name}: {network[name]}" for name in _that_count(network)),
        *(f"- {key}: {value}" for key, value in sorted(metrics["environment"].items())),
        "",
    ]


def _that_count(network: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that mean something for a network of this family."""
    names = ["family", "domain"]
    if network["family"] == "head":
        names += ["components", "start"]
    if network["family"] in {"complex", "real"}:
        names += ["widths", "convolutions", "groups", "head", "trained"]
        names += ["hidden"] if network["head"] == "hidden" else []
        names += ["rank"] if network["trained"].startswith("low_rank") else []
    if network["family"] == "complex":
        names += ["activation", "transform", "start"]
    return names


def _percent(fraction: float | None) -> str:
    return MISSING if fraction is None else f"{100 * fraction:.2f}"
