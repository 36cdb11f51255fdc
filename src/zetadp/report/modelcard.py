"""The model card: description, guarantee, results and limits of a trained model, from a template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zetadp.account.statement import leading_epsilon
from zetadp.accounting.threat import MASKED_SUMS, PERSONS, NoiseSource, arm_shown
from zetadp.base.epsilon import FALSE_ALARMS, describe_guarantee, percent_up, rounded_up
from zetadp.base.runfolder import RunName
from zetadp.base.tables import MISSING, Sheet
from zetadp.nn.settings import FEATURES, STUDY, NetworkSettings
from zetadp.report import notes
from zetadp.report.provenance import Cohort
from zetadp.report.rendering import render_template, to_markdown
from zetadp.training.task import Words

KINDS = {
    "complex": "complex-valued convolutional network",
    "real": "real-valued convolutional network",
    "dense": "network of fully connected layers",
    "spectrogram": "convolutional network",
    "unet": "complex-valued U-Net",
    "real_unet": "real-valued U-Net",
    "linear": "softmax regression on logarithms of magnitudes",
    "head": "complex-valued linear head",
    "own": "network of the user",
}
INPUTS = {
    "kspace": "k-space",
    "image": "real images",
    "complex": "complex images",
    "signal": "signals",
    "spectrum": "spectra",
    "features": "the features of a frozen public network",
    STUDY: "the features of all layers of a frozen public network, less their mean over all images of the patient",
}
TRAINED = {
    "all": "All its weights were",
    "norms": "Its head and the scales and shifts of its normalisation were",
}
"""Words of cards for families, domains and trained weights of networks."""


def model_card(
    run: Mapping[str, Any],
    network: Mapping[str, Any],
    privacy: Mapping[str, Any],
    metrics: Mapping[str, Any],
    cohort: Cohort,
    words: Words,
) -> str:
    """Return the card of one trained model as Markdown.

    Parameters
    ----------
    run
        ``network``, ``arm``, ``epsilon`` and ``seed`` of the run.
    network
        Settings of the network, by the names of `zetadp.nn.settings.NetworkSettings`.
    privacy
        Content of the run's ``privacy.json``.
    metrics
        Content of the run's ``metrics.json``; its ``environment`` becomes the provenance.
    cohort
        The cohort.
    words
        Texts of the model's task.
    """
    name, again = RunName.from_json(run), privacy.get("earlier_attempts")
    metric, threat = metrics["metric"], privacy["threat"]["model"]
    scored = [name.removesuffix("_interval") for name in metrics if name.endswith("_interval")]
    return render_template(
        "templates/card.md.j2",
        filters={
            "up": rounded_up,
            "describe_guarantee": describe_guarantee,
            "number": "{:g}".format,
            "percent": _percent,
            "table": to_markdown,
        },
        run=name,
        network=network,
        privacy=privacy,
        metrics=metrics,
        words=words,
        described=_describe_network(NetworkSettings(**network)),
        cohort=str(cohort),
        simulated=cohort.simulated,
        arm=arm_shown(name.arm, threat),
        items=metrics.get("items_called", "images"),
        person=privacy["unit"] if privacy["unit"] in PERSONS else PERSONS[0],
        seeded=privacy["noise_source"] == NoiseSource.SEEDED,
        sums=threat == MASKED_SUMS,
        spent=leading_epsilon(privacy),
        again=again,
        power=_power((again or privacy)["trade_off"]),
        start=metrics.get("public_start"),
        by_class=_class_table(metrics) if "classes" in metrics else None,
        others=[name for name in scored if name != metric],
        settings=NetworkSettings(**network).used,
        notes=notes,
    )


def _describe_network(network: NetworkSettings) -> str:
    """Return sentences on the kind of network, its inputs, its trained weights and their start."""
    start = "public" if network.start == "public" else "random"
    text = f"The network is a {KINDS[network.family]} on {INPUTS[network.domain]}. {TRAINED[network.trained]} trained "
    text += f"on the cohort, from {start} weights."
    if network.start == "public" or network.domain in FEATURES:
        text += " What is public was learnt from simulated items only."
    if network.start == "public" and network.domain == STUDY:
        text += " For each patient, the head that separates the classes better has more weight."
    return text


def _power(curve: Mapping[str, list[float]] | None) -> str:
    """Return the power of an attack at the first of `FALSE_ALARMS`, rounded up.

    It is tighter than the bound from one epsilon and delta. The result is empty if the curve is unknown.
    """
    if curve is None:
        return ""
    missed = dict(zip(curve["false_alarms"], curve["misses"], strict=True))[FALSE_ALARMS[0]]
    return percent_up(1 - missed)


def _class_table(metrics: Mapping[str, Any]) -> Sheet:
    """Return the table of the classes."""
    columns, word, scores = ("recall", "precision", "f1"), metrics["called"], metrics["per_class"]
    rows = tuple((name, *(_percent(scores[name][column]) for column in columns)) for name in metrics["classes"])
    return Sheet(f"By {word}, in %", (word, *columns), rows)


def _percent(fraction: float | None) -> str:
    return MISSING if fraction is None else f"{100 * fraction:.2f}"
