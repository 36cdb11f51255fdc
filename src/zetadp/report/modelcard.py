"""The model card: description, guarantee, results and limits of a trained model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zetadp.base.epsilon import UNCLIPPED, epsilon_label, epsilon_shown, epsilon_value, judged, rounded_up
from zetadp.base.sheet import MISSING, Sheet
from zetadp.core.task import Words
from zetadp.privacy.events import PERSONS
from zetadp.privacy.threat import SECURE_AGGREGATION, arm_shown
from zetadp.report.notes import INFINITY_NOTE, SEEDED_NOTE, SIMULATION_NOTE, UNCLIPPED_NOTE, WORSE_NOTE
from zetadp.report.rendering import to_markdown
from zetadp.report.tables import is_simulated

FALSE_ALARM = 0.01


def model_card(
    run: Mapping[str, Any],
    network: Mapping[str, Any],
    privacy: Mapping[str, Any],
    metrics: Mapping[str, Any],
    cohort_label: str,
    words: Words,
) -> str:
    """Return the card of one trained model as Markdown.

    Parameters
    ----------
    run
        ``network``, ``arm``, ``epsilon`` and ``seed`` of the run.
    network
        All settings of the network, by the names of `zetadp.nn.settings.NetworkSettings`.
    privacy
        Content of the run's ``privacy.json``.
    metrics
        Content of the run's ``metrics.json``; its ``environment`` becomes the provenance.
    cohort_label
        Name of the cohort. It contains the word "simulated" if the cohort is.
    words
        Texts of the model's task.
    """
    epsilon = epsilon_label(run["epsilon"])
    chosen = epsilon if epsilon == UNCLIPPED else f"ε = {epsilon_shown(epsilon)}"
    arm = arm_shown(run["arm"], privacy["threat"]["model"])
    items = metrics.get("items_called", "images")
    person = privacy["unit"] if privacy["unit"] in PERSONS else PERSONS[0]
    return "\n".join(
        [
            f"# {words.title}: {run['network']}, {arm}, {chosen}, seed {run['seed']}",
            "",
            "## Task",
            "",
            words.about,
            "",
            f"**Input.** {words.inputs}",
            "",
            f"**Output.** {words.outputs}",
            "",
            "## Data",
            "",
            f"Cohort: {cohort_label}. Tested on {metrics['images']} {items} of {metrics['patients']} "
            f"{person}s who took no part in training.",
            *([SIMULATION_NOTE] if is_simulated(cohort_label) else []),
            "",
            *_privacy(epsilon, privacy),
            *_accuracy(metrics),
            *_limits(cohort_label, words),
            "## Use",
            "",
            "```sh",
            words.usage,
            "```",
            "",
            *_provenance(run, network, metrics),
        ]
    )


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
    # The statement's curve bounds this much better than one (epsilon, delta): that allows nearly 100 % at epsilon 8.
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
        # A bound for one image would be read as a bound for a person.
        plain = (
            f"ε = {rounded_up(spent)} is per image, a weaker guarantee that protects no {whole['unit']}: one has "
            f"{whole['images']} images. The true ε per {whole['unit']} at δ = {delta:g} is "
            f"{judged(whole['epsilon'])}."
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
        lines.append(f"- ε against a server that sees single messages, which nothing here prevents: {alone}")
    lines.append(f"- ε by the Renyi accountant, as a check: {rounded_up(privacy['epsilon_rdp'])}")
    for name, node in privacy["nodes"].items():
        lines.append(f"- {name}: {node['population']} {unit}s, ε = {rounded_up(node['epsilon'])}")
    return [*lines, *(f"- Not covered: {text}." for text in privacy["does_not_cover"]), ""]


def _accuracy(metrics: Mapping[str, Any]) -> list[str]:
    metric, start = metrics["metric"], metrics.get("public_start")
    worse = [WORSE_NOTE] if start is not None and metrics[metric] < start else []
    interval = metrics[f"{metric}_interval"]
    between = "no interval: it needs at least two test patients"
    if interval["low"] is not None:
        low, high = _percent(interval["low"]), _percent(interval["high"])
        between = f"{interval['level']:.0%} interval over patients: {low} to {high} %"
    if "classes" not in metrics:
        others = [name.removesuffix("_interval") for name in metrics if name.endswith("_interval")]
        return [
            "## Quality",
            "",
            f"- {metric}: {_percent(metrics[metric])} % ({between}).",
            *(f"- {name}: {metrics[name]:.4g}." for name in others if name != metric),
            *(
                [f"- {metric}, public weights alone, before any private training: {_percent(start)} %."]
                if start is not None
                else []
            ),
            *worse,
            "",
        ]
    columns, word, by_volume = ("recall", "precision", "f1"), metrics["called"], metrics.get("volume_accuracy")
    rows = tuple(
        (name, *(_percent(metrics["per_class"][name][column]) for column in columns)) for name in metrics["classes"]
    )
    by_image = metric == "accuracy"
    return [
        "## Accuracy",
        "",
        f"- {'By image' if by_image else metric}: {_percent(metrics[metric])} % ({between}). "
        f"A guess reaches {_percent(1 / len(rows))} %.",
        *([f"- By volume, majority vote over its slices: {_percent(by_volume)} %."] if by_volume is not None else []),
        *([] if by_image else [f"- Accuracy: {_percent(metrics['accuracy'])} %."]),
        f"- Macro F1: {_percent(metrics['macro_f1'])} %.",
        *(
            [f"- By image, public weights alone, before any private training: {_percent(start)} %."]
            if start is not None
            else []
        ),
        *worse,
        "",
        to_markdown(Sheet(f"By {word}, in %", (word, *columns), rows)),
    ]


def _limits(cohort_label: str, words: Words) -> list[str]:
    origin = (
        "- Trained and tested on a simulated cohort: its accuracy on patients is unknown."
        if is_simulated(cohort_label)
        else "- Tested on held-out data of the same source: other scanners, sites and pathologies may do worse."
    )
    return [
        "## Limits",
        "",
        origin,
        *(f"- {limit}" for limit in words.limits),
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
    """Return the names of the settings that a network of this family uses."""
    names = ["family", "domain"]
    if network["family"] == "head":
        names += ["components", "start", *(["taper"] if network.get("taper") else [])]
    if network["family"] in {"unet", "real_unet"}:
        names += ["widths", "convolutions", "activation", "start", "trained"]
    if network["family"] in {"complex", "real"}:
        names += ["widths", "convolutions", "groups", "head", "trained"]
        names += ["hidden"] if network["head"] == "hidden" else []
    if network["family"] == "dense":
        names += ["widths", "activation"] if network["domain"] in {"complex", "spectrum"} else ["widths"]
    if network["family"] == "complex":
        names += ["activation", "transform", "start"]
    return names


def _percent(fraction: float | None) -> str:
    return MISSING if fraction is None else f"{100 * fraction:.2f}"
