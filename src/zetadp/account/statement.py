"""Privacy statements: what can be claimed for a run, or for all runs on a cohort, and what cannot.

A statement is a JSON object that gives unit, neighbours, sampling, audience and delta with every epsilon. One template
has its sentences and the text for readers. An infinite epsilon is the string ``"inf"``, as everywhere in the project.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from zetadp.account.attempts import Attempt, made_model, read_ledger
from zetadp.account.declaration import MixedRows
from zetadp.account.exposure import (
    Run,
    common_unit,
    distinct,
    guarantee_of,
    noise_of,
    over_runs,
    promised,
    runs_of,
    seen_by,
)
from zetadp.account.figures import basis_of, curve_of, figures_of, figures_of_node, number, worst_epsilon
from zetadp.account.offers import offer
from zetadp.account.totals import Total
from zetadp.accounting import composition
from zetadp.accounting.threat import CENTRAL_HOLDER, NOTHING_HIDDEN, PERSONS, Audience, NoiseSource, Unit
from zetadp.base.epsilon import FALSE_ALARMS, rounded_up
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import write_json, write_text
from zetadp.base.templates import template
from zetadp.base.validation import UserError, counted


class Statement(dict[str, Any]):
    """A privacy statement: a JSON object, and what it says in words. As text it is its first sentences, the claim."""

    @property
    def guarantee(self) -> str:
        """``holds``, ``simulated`` or ``none``."""
        return str(self["guarantee"])

    @property
    def text(self) -> str:
        """The whole statement, for readers who are not experts in differential privacy.

        Raises
        ------
        UserError
            If the statement lacks an entry.
        """
        try:
            return str(_sentences().text(self))
        except TemplateError as error:
            raise UserError(f"Expected a whole statement, found one that cannot be put into words: {error}.") from error

    def write(self, file: Path, text: Path) -> None:
        """Write the statement as JSON, and in words."""
        write_json(file, self)
        write_text(text, self.text)

    def seal(self, run: RunFolder, card: str | None = None) -> None:
        """Write the statement of a finished run, and its model's card if it has one, and seal the run's files.

        The seal comes last: the next call writes all of this again for a run that was killed before.
        """
        self.write(run.privacy, run.text)
        if card is not None:
            write_text(run.card, card)
        run.write_seal()

    def __str__(self) -> str:
        return str(self["statement"])

    __repr__ = __str__


def run_statement(
    run: Run, *, target_epsilon: float, earlier: Sequence[Run] = (), backbone: str | None = None
) -> Statement:
    """Return the privacy statement of one run.

    Parameters
    ----------
    run
        The releases, and what the ledger declares: delta, unit, source of the noise, number of rounds. The epsilons are
        for the larger number of rounds.
    target_epsilon
        Target epsilon of the calibration.
    earlier
        Earlier attempts of the run, finished or not. Their releases count too.
    backbone
        Hash of the public network from which weights or features came.
    """
    delta, rows = run.delta, run.mixed_rows is not None
    unit: Unit = "image" if run.images else run.unit
    totals = seen_by(run, "server") or {}
    kinds = distinct(totals.values())
    summed = run.sums is not None and run.private
    unhidden = any(attempt.private and attempt.noise == NoiseSource.SEEDED for attempt in earlier)
    names: tuple[Audience, ...] = ("server", "messages", "node", "reader") if run.sums else ("server", "node", "reader")
    audiences = {audience: _audience(run, audience) for audience in names}
    alone = audiences["messages"] if summed else None
    # In a sum, contributions of one person at two nodes are under the same noise, so their costs do not compose. The
    # costs of single messages compose and are an upper bound.
    apart = seen_by(run, "messages") if summed else totals
    content = {
        "kind": "run",
        "name": run.name,
        "guarantee": "simulated" if run.private and unhidden else guarantee_of([run]),
        "earlier_attempts": _with_earlier(run, earlier),
        "of_all_images": None if run.images is None else _of_all_images(run, run.images),
        "public": None if backbone is None else _words("public", unit, backbone),
        **_setting(unit, [run]),
        **({"laws": laws} if (laws := cited_laws([*earlier, run])) else {}),
        "threat": {
            "model": run.threat,
            "sums": None if run.sums is None else {**asdict(run.sums), "shares": run.shares},
            "against": _words("against", run.threat, run.sums, rows) if run.private else "against nobody",
            "assumes": _words("assumes", run.threat, run.sums, run.shares, rows) if run.private else NOTHING_HIDDEN,
            "epsilon_single_messages": alone and alone["epsilon"],
        },
        "delta": delta,
        "target_epsilon": number(target_epsilon),
        **figures_of([replace(run, images=None)], unit, delta, apart),
        "epsilon_rdp": number(max(composition.epsilon_rdp(total, delta) for total in kinds)),
        "rounds": {
            "declared": run.declared_rounds,
            "happened": max(history.rounds for history in run.nodes.values()),
            "replayed": max(history.releases // history.count - history.rounds for history in run.nodes.values()),
        },
        **({} if run.mixed_rows is None else {"rows": _rows(run, run.mixed_rows)}),
        "audiences": audiences,
        "nodes": {
            node: figures_of_node(history, totals[node], run, summed=summed) for node, history in run.nodes.items()
        },
        "covers": _list("covers", unit, rows),
        "does_not_cover": does_not_cover(unit, summed=summed, rows=rows),
    }
    return Statement(statement=_words("run_claim", content, rows), **content)


def _rows(run: Run, rows: MixedRows) -> dict[str, Any]:
    """Return the public constants of mixed rows: how many there are of a node, and how many units are in one."""
    degree = {node: history.expected for node, history in run.nodes.items()}
    return {"number": rows.number, "active": rows.active, "shares": rows.shares and list(rows.shares), "degree": degree}


def _of_all_images(run: Run, images: int) -> dict[str, Any]:
    """Return the cost of a run that draws single images, for a patient or record with all of its images."""
    return {"unit": run.unit, "images": images, "epsilon": number(Total.of([run], run.delta).epsilon)}


def leading_epsilon(privacy: Mapping[str, Any]) -> float:
    """Return what a run has cost with all of its attempts: the figure that leads on every page about the run.

    Where single images are drawn, it is the cost of one image in the last attempt, as the statement says.

    Parameters
    ----------
    privacy
        Content of the run's ``privacy.json``.
    """
    together = privacy.get("earlier_attempts")
    if together and "counted" not in together:
        return float(together["epsilon_together"])
    return float(privacy["epsilon"])


def _with_earlier(run: Run, earlier: Sequence[Run]) -> dict[str, Any] | None:
    """Return the cost of this attempt and all earlier ones together, or None if there were none."""
    if not earlier:
        return None
    runs = [*earlier, run]
    together = Total.of(runs, run.delta)
    seeded = sum(attempt.private and attempt.noise == NoiseSource.SEEDED for attempt in earlier)
    content: dict[str, Any] = {
        "number": len(earlier),
        "epsilon_together": number(together.epsilon),
        "seeded": seeded,
        "trade_off": None
        if together.epsilon == math.inf
        else curve_of(runs, over_runs(runs, run.delta, measure=promised), run.unit),
        **basis_of(together),
    }
    if any(attempt.images for attempt in runs):
        content["counted"] = f"all images of a {run.unit} together"
    return content


def account_run(ledger: Path, model: Path, *, name: str) -> Statement:
    """Return the statement of the attempt that made a model, which is the last one in the ledger.

    Parameters
    ----------
    ledger, model
        The run's sealed ledger, and its model, which contains the head of that ledger.
    name
        Name of the run in the statement.

    Raises
    ------
    UserError
        If the ledger does not record the run that made the model, or lacks lines, or if the model names no ledger.
        The model's weights are not checked: only what its file says of the ledger is read.
    """
    attempts = read_ledger(ledger)
    if not made_model(attempts[-1:], model):
        raise UserError(
            f"Expected {ledger} to record the run that made {model}, found another or none, or lines are missing at "
            f"its end. {offer('restore both files from one backup', 'train the model again')}"
        )
    return last_statement(attempts, name)


def last_statement(attempts: Sequence[Attempt], name: str) -> Statement:
    """Return the statement of the last attempt in a ledger, which includes the releases of earlier attempts.

    Unit, delta, source of the noise and target epsilon are those of the ledger.

    Parameters
    ----------
    attempts
        What the ledger says.
    name
        Name of the run in the statement.
    """
    *earlier, happened = runs_of(Path(name), attempts)
    last = attempts[-1].declaration
    return run_statement(
        replace(happened, name=name),
        target_epsilon=last.target.epsilon,
        earlier=earlier,
        backbone=last.public.get("backbone"),
    )


def total_statement(runs: Sequence[Run], *, shared: Mapping[str, int] | None = None) -> Statement:
    """Return the privacy statement of a cohort after all runs on it.

    One run's epsilon is for a hospital that trains once. Here every run counts: first the private runs alone, then all
    runs. Runs with masked sums count as their servers see them, and also with their single messages. The second
    total is "none" as soon as one run had no noise.

    Parameters
    ----------
    runs
        All runs on the cohort. Unit and source of the noise are what their ledgers say: with one seeded run, all of it
        is a simulation. Delta is the smallest one that a ledger declares.
    shared
        Other cohorts that contain some of the same training records, and the number of these. ``runs`` includes their
        runs.

    Raises
    ------
    UserError
        If there are no runs, or if their units differ: records and persons do not add up.
    """
    unit = common_unit(runs)
    delta = min(run.delta for run in runs)
    private = [run for run in runs if run.private]
    broken = [run.name for run in runs if not run.private]
    together = {"runs": len(private), **figures_of(private, unit, delta)}
    summed = [run.name for run in private if run.sums]
    unmasked = {"runs": summed, "epsilon": number(Total.of(private, delta, unmasked=True).epsilon)} if summed else None
    by_image = [run.name for run in private if run.images]
    guarantee = guarantee_of(runs)
    stated = "none" if broken else guarantee
    content = {
        "kind": "total",
        "guarantee": stated,
        **_setting(unit, runs),
        **({"laws": laws} if (laws := cited_laws(runs)) else {}),
        "delta": delta,
        "private_rows": together,
        "single_messages": unmasked,
        "of_all_images": {"runs": by_image, "counted": f"all images of a {unit} together"} if by_image else None,
        "all_rows": {
            "runs": len(runs),
            "epsilon": "inf" if broken else together["epsilon"],
            "guarantee": stated,
            "without_noise": broken,
        },
        "shared_with": dict(shared or {}),
        "does_not_cover": does_not_cover(unit)[1:],
    }
    central = any(run.threat == CENTRAL_HOLDER for run in private)
    return Statement(statement=_words("total_claim", content, guarantee, central), **content)


def cited_laws(runs: Iterable[Run]) -> list[str]:
    """Return what some runs released by each law of noise that an installed package brings, and where its proof is."""
    laws = {kind.law: kind for run in runs for kind in run.laws}
    return [_words("law_of_noise", kind) for _, kind in sorted(laws.items())]


def does_not_cover(unit: Unit, *, summed: bool = False, rows: bool = False) -> list[str]:
    """Return what the guarantee of a run or of rows does not cover. With ``summed``, the server sees only sums."""
    return _list("does_not_cover", unit, unit if unit in PERSONS else PERSONS[0], summed, rows)


def _setting(unit: Unit, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the entries of a statement on unit, neighbours, sampling and noise."""
    source, private = noise_of(runs), [run for run in runs if run.private]
    probabilities = sorted({kind.sampling_probability for run in runs for kind in run.kinds})
    return {
        "unit": unit,
        "neighbours": _words("neighbours", unit),
        "sampling": _words("sampling", unit, probabilities, all(run.mixed_rows for run in runs)),
        "noise_source": source.value,
        "noise": _words("noise", source == NoiseSource.SEEDED, bool(private)),
    }


def _words(sentences: str, *arguments: object) -> str:
    """Return sentences of the template on one line."""
    return " ".join(str(getattr(_sentences(), sentences)(*arguments)).split())


def _list(entries: str, *arguments: object) -> list[str]:
    """Return a list of the template."""
    return [line for line in str(getattr(_sentences(), entries)(*arguments)).splitlines() if line]


def _format_epsilon(value: float | str) -> str:
    """Return an epsilon for display, or "no guarantee"."""
    return "no guarantee" if float(value) == math.inf else rounded_up(value, digits=3)


def _percent_down(rate: float) -> str:
    return f"{math.floor(rate * 1000) / 10:.1f} %"


def _points(curve: Mapping[str, Sequence[float]]) -> list[tuple[float, float]]:
    """Return the points of a trade-off curve that stand in the text."""
    misses = dict(zip(curve["false_alarms"], curve["misses"], strict=True))
    return [(rate, misses[rate]) for rate in FALSE_ALARMS]


@cache
def _sentences() -> Any:  # noqa: ANN401  (macros of a template)
    """Return the template's macros, compiled where a statement is first written or read."""
    filters: dict[str, Callable[..., Any]] = {
        "shown": _format_epsilon,
        "number": "{:g}".format,
        "percent_down": _percent_down,
        "points": _points,
        "counted": counted,
    }
    return template(Path(__file__).parent / "templates/statement.j2", filters).module


def _audience(run: Run, audience: Audience) -> dict[str, Any] | None:
    seen = seen_by(run, audience)
    if seen is None:
        return None
    epsilon = worst_epsilon(distinct(seen.values()), run.delta, beforehand=not run.repeated)
    return {
        "epsilon": number(epsilon),
        "assumption": _words("audience", audience, run.sums, run.shares, bool(run.laws), bool(run.mixed_rows)),
    }
