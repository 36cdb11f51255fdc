"""A page on the information that a run may reveal about a person, for data-protection officers and engineers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zetadp.account.risk import CANDIDATES, DELTAS, DRAWN, Risk
from zetadp.account.statement import cited_laws, does_not_cover
from zetadp.account.totals import Total
from zetadp.accounting.threat import Sums
from zetadp.base.epsilon import FALSE_ALARMS, percent_up, rounded_up
from zetadp.base.storage import write_text
from zetadp.base.tables import Sheet
from zetadp.base.validation import counted
from zetadp.report.figurestyle import WIDTH, figure_style, panel_grid, save_svg, set_title
from zetadp.report.rendering import Section, page_html

TEN = 10
"""Number of candidates in the first sentence."""
PICTURE = "risk.svg"
_MOST_ODDS = 1e6
_SHOWN = {
    "audit": "Attacks on the training code: measured against claimed privacy",
    "membership": "Attempts to identify participants from finished models, on simulated patients",
    "candidates": "Rate at which the right one of several candidates was named, on simulated patients",
    "inversion": "Images rebuilt from one message, of simulated patients",
}
_OF_NETWORKS = ("candidates", "inversion")
"""Attacks on single networks; only the pages of that network's runs show them."""
_REPEATED = {
    "audit": "`snakemake audit` repeats the attacks on the code.",
    "candidates": "`snakemake name_candidates` repeats the naming of candidates.",
    "inversion": "`snakemake invert_gradients` repeats the rebuilding of images.",
}
_STRONG, _PALE, _GREY = "#0072B2", "#C4D9EA", "#777777"


@dataclass(frozen=True)
class Evidence:
    """Results of attacks on the code, in the experiment of a run.

    Attributes
    ----------
    tables
        Tables of the rules ``audit``, ``name_candidates`` and ``invert_gradients`` by the names of their files. The
        last two are about the run's network, if it was attacked.
    pictures
        SVG files by their descriptions.
    """

    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    pictures: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Iterable[Path], network: str | None = None) -> Evidence:
        """Return the results for a network from the files of an experiment's audit."""
        paths = {path.name: path for path in files}
        tables = {name: pd.read_csv(paths[f"{name}.csv"], comment="#") for name in _REPEATED if f"{name}.csv" in paths}
        for name in tables.keys() & set(_OF_NETWORKS):
            tables[name] = tables[name][tables[name]["network"] == network]
        tables = {name: table for name, table in tables.items() if len(table)}
        names = [name for name in _SHOWN if name in tables or name not in _OF_NETWORKS]
        return cls(tables, {_SHOWN[name]: paths[f"{name}.svg"] for name in names if f"{name}.svg" in paths})


def write_risk(risk: Risk, folder: Path, ledger: str, evidence: Evidence) -> None:
    """Write ``risk.html`` and its picture.

    Parameters
    ----------
    risk
        The releases and their bounds.
    folder
        Folder for the files.
    ledger
        The ledger's path, for the commands that the page prints.
    evidence
        Results of attacks.
    """
    save_svg(risk_figure(risk), folder / PICTURE)
    title = f"What may be learnt about one {risk.unit}: {risk.name}"
    sections = _sections(risk, ledger, evidence, folder / PICTURE)
    write_text(folder / "risk.html", page_html(title, list(sections)))


def headline(risk: Risk) -> str:
    """Return the first sentence of the page: the most important fact for a hospital."""
    if risk.guarantee == "none":
        return f"Nothing limits what these models reveal about a {risk.unit}: at least one was released without noise."
    guess = percent_up(risk.right_guesses(TEN, risk.delta))
    candidates = f"the data of {TEN} candidates" if _of_persons(risk) else f"{TEN} candidate {risk.unit}s"
    claim = (
        f"Someone who has {candidates}, and knows that exactly one of them took part, names the right "
        f"one at most {guess} of the time, even with the data of all other people; {_percent(1 / TEN)} is guessing."
    )
    if _sums(risk):
        claim = f"As long as masks hide single messages, {claim[0].lower()}{claim[1:]}"
    if risk.guarantee == "simulated":
        claim = claim[0].lower() + claim[1:]
        return f"This was a simulation and protects nobody. With noise that does not come from a seed, {claim}"
    return claim


def _of_persons(risk: Risk) -> bool:
    """Return whether the figures are about a person with all data, and not about one of the person's records."""
    return risk.unit not in ("record", "image")


def _sums(risk: Risk) -> list[Sums]:
    """Return what masked sums of the runs rely on; nothing where each message has enough noise of its own."""
    return [run.sums for run in risk.runs if run.sums is not None]


def _of_masks(risk: Risk) -> list[str]:
    """Return what the figures rely on if messages are masked, and epsilon without it."""
    if not (sums := _sums(risk)) or risk.guarantee == "none":
        return []
    undone = Total.of(risk.runs, risk.delta, unmasked=True).epsilon
    colluding = counted(min(one.colluding for one in sums), "hospital tells", "hospitals tell")
    return [
        "The figures hold as long as masks hide single messages and at most "
        f"{colluding} the server what they know. Against anyone who could "
        f"undo the masks, epsilon is {rounded_up(undone, 3)} at δ = {risk.delta:g}."
    ]


def risk_figure(risk: Risk) -> Figure:
    """Draw the rate of correctly named candidates, and the trade-off curve if it is known."""
    with figure_style():
        figure, panels = panel_grid(2, 2, 3.6)
        _draw_candidates(panels[0], risk)
        _draw_curve(panels[1], risk)
        set_title(figure, f"The most that any attack can do against one {risk.unit}")
        figure.set_figwidth(WIDTH)
    return figure


def _draw_candidates(panel: Axes, risk: Risk) -> None:
    positions = np.arange(len(CANDIDATES))
    shares = [risk.right_guesses(number, risk.delta) for number in CANDIDATES]
    panel.barh(positions, shares, height=0.55, color=_PALE, edgecolor=_STRONG, label="with all releases")
    panel.barh(positions, [1 / n for n in CANDIDATES], height=0.55, color=_STRONG, label="by guessing")
    for position, share in enumerate(shares):
        panel.text(min(share, 0.8) + 0.01, position, percent_up(share), va="center", fontsize=9)
    panel.set_yticks(positions, [f"1 of {number}" for number in CANDIDATES])
    panel.invert_yaxis()
    panel.set_xlim(0, 1)
    panel.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    panel.set_title("Naming the right candidate: at most", loc="left")
    panel.legend(frameon=False, loc="lower right")


def _draw_curve(panel: Axes, risk: Risk) -> None:
    misses = risk.misses(DRAWN)
    panel.plot([0, 1], [1, 0], color=_GREY, linewidth=0.8, label="guessing")
    if misses is None:
        panel.text(0.5, 0.5, f"not computed: {_no_curve(risk)}", ha="center", va="center")
    else:
        panel.fill_between(DRAWN, misses, 0, color=_PALE, label="no attack gets here")
        panel.plot(DRAWN, misses, color=_STRONG)
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1)
    ticks = [0, 0.5, 1]
    panel.set_xticks(ticks, [f"{tick:.0%}" for tick in ticks])
    panel.set_yticks(ticks, [f"{tick:.0%}" for tick in ticks])
    panel.set_xlabel(f"{_outsiders(risk)} and are suspected")
    panel.set_ylabel("participants who are missed")
    panel.set_title("Recognising who took part", loc="left")
    panel.legend(frameon=False, loc="upper right")


def _sections(risk: Risk, ledger: str, evidence: Evidence, picture: Path) -> Iterator[Section]:
    unit = risk.unit
    rows = all(run.mixed_rows for run in risk.runs)
    person = unit if rows else f"training {unit}"
    recorded = counted(len(risk.runs), "run or release", "runs or releases")
    yield Section("In one sentence", [headline(risk)])
    yield Section(
        "Who is protected, and how far",
        [
            f"The figures are about one {person}. They bound the effect of all of the {unit}'s data together. "
            "They hold for every attack, even by someone who knows the data of all other people and sees everything "
            "that left the data holder: "
            f"{'all released rows' if rows else 'the messages of every round and all models'}.",
            *([] if _of_persons(risk) else [f"A person with several {unit}s is protected less than this."]),
            *_of_masks(risk),
            *cited_laws(risk.runs),
            f"The figures count what this ledger records: {recorded}. Releases of the same {unit}s that other ledgers "
            "record add to it.",
            *([] if risk.guarantee == "none" else filter(None, [str(Total.of(risk.runs, risk.delta))])),
        ],
        pictures={f"The most that any attack can do against one {unit}": picture},
    )
    if risk.guarantee != "none":
        yield Section("Figures", tables=[_candidates_sheet(risk), *_curve_sheets(risk), _odds_sheet(risk)])
    yield from _attack_sections(evidence)
    yield Section("What is not covered", points=does_not_cover(unit, summed=bool(_sums(risk)), rows=rows))
    yield Section(
        "How to check this page",
        points=[
            f"`zetadp ledger {ledger}` prints epsilon at δ = {risk.delta:g}, and the trade-off curve.",
            f"`zetadp risk {ledger}` writes this page again, from the ledger alone.",
            *(text for name, text in _REPEATED.items() if name in evidence.tables),
        ],
    )


def _outsiders(risk: Risk) -> str:
    return f"{risk.unit}s {'who' if _of_persons(risk) else 'that'} took no part"


def _no_curve(risk: Risk) -> str:
    """Return the kind of runs for which no trade-off curve is computed."""
    return "people with many images" if risk.beforehand else "runs chosen after earlier results"


def _candidates_sheet(risk: Risk) -> Sheet:
    bounds = {number: percent_up(risk.right_guesses(number, risk.delta)) for number in CANDIDATES}
    rows = tuple((f"1 of {number}", _percent(1 / number), bound) for number, bound in bounds.items())
    notes = (
        "The bound on reconstruction of Hayes, Mahloujifar and Balle (2023), from the trade-off curve. Candidates are "
        "equally likely beforehand; an attacker who knows more begins with a better guess.",
    )
    if not risk.curved:
        notes = (f"e^ε / n + δ, with δ = {risk.delta:g}: no trade-off curve is known for {_no_curve(risk)}.",)
    return Sheet("Naming the right one of several candidates", ("candidates", "guessing", "at most"), rows, notes)


def _curve_sheets(risk: Risk) -> list[Sheet]:
    misses = risk.misses(FALSE_ALARMS)
    if misses is None:
        return []
    rows = tuple((_percent(rate), percent_up(1 - missed)) for rate, missed in zip(FALSE_ALARMS, misses, strict=True))
    columns = (f"wrongly suspected, of {_outsiders(risk)}", "identified at most, of participants")
    return [Sheet("Recognising who took part", columns, rows)]


def _odds_sheet(risk: Risk) -> Sheet:
    rows = tuple((f"{delta:g}", rounded_up(risk.epsilon(delta), 3), _times(risk.odds(delta))) for delta in DELTAS)
    notes = (
        "Except with probability δ, the odds that someone took part rise at most by this factor, whatever the attacker "
        "sees. The factor is larger than the exponential of ε, which does not bound the odds with that probability. A "
        "large factor is not an attack: the two tables above say more.",
    )
    return Sheet("Epsilon and odds", ("δ", "ε", "odds rise at most"), rows, notes)


def _attack_sections(evidence: Evidence) -> Iterator[Section]:
    text = ["The people of this run were not attacked. The bounds above hold if the code works as described."]
    attacks = evidence.tables
    if not attacks and not evidence.pictures:
        yield Section("Measured attacks", [*text, "This run has no audit of the code: `snakemake audit` makes one."])
        return
    from zetadp.audit import candidates, inversion, suite  # they import PyTorch, which takes seconds

    sheets = []
    if "audit" in attacks:
        count, stands = len(attacks["audit"]), int((attacks["audit"]["verdict"] == "stands").sum())
        text.append(
            f"{count} attacks on the code that ran, with simulated people, looked for leaks beyond the claim: "
            f"{stands} found none, {count - stands} refuted a claim."
        )
        if weak := int((attacks["audit"]["power"] < 0.5).sum()):
            text.append(
                f"{weak} of them had too few trials to find the named fault in most cases (power below 0.5 in the "
                "table), so their finding none says little."
            )
        sheets.append(suite.sheet(attacks["audit"], "of the code"))
    if "candidates" in attacks:
        sheets.append(candidates.sheet(attacks["candidates"]))
    if "inversion" in attacks:
        sheets.append(inversion.sheet(attacks["inversion"]))
        text.append("A search for images that finds nothing proves nothing: the bounds hold for any attack.")
    yield Section("Measured attacks", text, tables=sheets, pictures=evidence.pictures)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _times(odds: float) -> str:
    if odds >= _MOST_ODDS:
        return "over a million times"
    return f"{math.ceil(odds):,} times" if odds >= TEN else f"{rounded_up(odds, 3)} times"
