"""Rank activations by their scores over seeds: intervals, paired tests, the order in Ziller et al., and a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.stats import kendalltau, t, wilcoxon

from zetadp.base.randomness import Purpose, stream
from zetadp.base.tables import MISSING, Sheet
from zetadp.report.figurestyle import GREY, SMALL, WIDTH, figure_style, panel_grid, set_legend, set_title, wrap_text
from zetadp.report.rendering import interval_cell, spread_cell
from zetadp.training.metrics import LEVEL, percentile_interval, resamples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER = pd.read_csv(Path(__file__).with_name("printed.csv"), comment="#", index_col="activation")["auc"].to_dict()
"""Area under the ROC curve in % as Ziller et al. print it (Table 4), worst first."""
WINNER = "igaussian"
NAMES = {
    "conj_mish": "ConjMish",
    "split_mish": "split Mish",
    "separable_sigmoid": "separable sigmoid",
    "zrelu": "zReLU",
    "cardioid_per_channel": "cardioid, bias per channel",
    "siglog": "SigLog",
    "modrelu_per_channel": "modReLU, bias per channel",
    "cardioid": "cardioid",
    "cardioid_single": "cardioid, one bias",
    "modrelu": "modReLU",
    "crelu": "cReLU",
    "igaussian": "iGaussian",
    "complex_tanh": "complex tanh",
}
MEASURED = {"speech": ("AUC", "clip", 50.0), "k-space": ("accuracy", "patient", 25.0)}
"""Metric, unit and chance in % of each task."""
SIGNIFICANT = 0.05


def holm(values: np.ndarray) -> np.ndarray:
    """Return p-values, corrected for multiple tests by Holm's method (1979).

    Examples
    --------
    >>> holm(np.array([0.04, 0.01, 0.03])).round(2).tolist()
    [0.06, 0.03, 0.06]
    """
    order = values.argsort(kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.maximum.accumulate(steps).clip(max=1)
    return corrected


def paired(scores: pd.DataFrame, reference: str) -> pd.Series:
    """Return corrected p-values of exact two-sided signed-rank tests (Wilcoxon) of every other column with one.

    Parameters
    ----------
    scores
        One row per seed, one column per activation.
    reference
        The column that the others are compared with.
    """
    others = [name for name in scores if name != reference]
    p_values = [float(wilcoxon(scores[name], scores[reference], method="exact").pvalue) for name in others]
    return pd.Series(holm(np.array(p_values)), index=others)


def agreement(scores: pd.DataFrame) -> dict[str, float]:
    """Return Kendall's rank correlation of the mean scores with the paper's order.

    Parameters
    ----------
    scores
        One row per seed, one column per activation.

    Returns
    -------
    ``tau``; ``tau_low`` and ``tau_high``, its percentile bootstrap interval over seeds, the paper's order taken as
    printed; ``p``, exact, against no association.
    """
    by_activation, printed = scores[list(PAPER)].to_numpy(), np.array(list(PAPER.values()))
    means = resamples(len(by_activation), stream(0, Purpose.BOOTSTRAP)) @ by_activation / len(by_activation)
    first, second = np.triu_indices(len(printed), 1)
    taus = np.mean(np.sign(means[:, first] - means[:, second]) * np.sign(printed[first] - printed[second]), axis=1)
    correlation = kendalltau(by_activation.mean(axis=0), printed, method="exact")
    low, high = percentile_interval(taus)
    return {
        "tau": float(correlation.statistic),
        "tau_low": low,
        "tau_high": high,
        "p": float(correlation.pvalue),
    }


def by_seed(scores: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return scores of one task, one row per seed and one column per activation."""
    return scores[scores["task"] == task].pivot(index="seed", columns="activation", values="score")


def tasks(frame: pd.DataFrame) -> list[str]:
    """Return the tasks that a table has, in the order in which they are shown."""
    return [task for task in MEASURED if task in set(frame["task"])]


def order(scores: pd.DataFrame) -> pd.DataFrame:
    """Return `agreement` of every task, one row each."""
    by_task = {task: by_seed(scores, task) for task in tasks(scores)}
    return pd.DataFrame(
        {"task": task, "seeds": len(scores_of_task)} | agreement(scores_of_task)
        for task, scores_of_task in by_task.items()
    )


def table(scores: pd.DataFrame) -> pd.DataFrame:
    """Return one row per task and activation, best first.

    Parameters
    ----------
    scores
        Columns ``task``, ``activation``, ``epsilon``, ``rate``, ``seed``, ``spent`` and ``score``, one row per run.
    """
    parts = []
    for task in tasks(scores):
        by_activation = by_seed(scores, task)
        reach = t.ppf((1 + LEVEL) / 2, len(by_activation) - 1) * by_activation.std() / len(by_activation) ** 0.5
        frame = pd.DataFrame({"mean": by_activation.mean(), "std": by_activation.std(), "seeds": len(by_activation)})
        frame = frame.assign(ci_low=by_activation.mean() - reach, ci_high=by_activation.mean() + reach)
        frame["above_winner"] = by_activation.mean() - by_activation[WINNER].mean()
        frame["p_winner"] = paired(by_activation, WINNER)
        frame["p_best"] = paired(by_activation, str(by_activation.mean().idxmax()))
        of_runs = (
            scores[scores["task"] == task]
            .groupby("activation")
            .agg(rate=("rate", "first"), epsilon=("epsilon", "first"), spent=("spent", "max"))
        )
        frame = frame.join(of_runs).assign(paper=pd.Series(PAPER), task=task)
        parts.append(frame.sort_values("mean", ascending=False, kind="stable").rename_axis("activation").reset_index())
    whole = pd.concat(parts, ignore_index=True)
    whole["rank"] = whole.groupby("task").cumcount() + 1
    first = ["task", "rank", "activation", "paper", "epsilon", "spent", "rate", "seeds"]
    return whole[[*first, *(column for column in whole if column not in first)]]


def sheet(frame: pd.DataFrame, correlations: pd.DataFrame, spent: str) -> Sheet:
    """Lay the table out, with a further note on what a speaker spends."""

    def probability(value: float) -> str:
        return MISSING if np.isnan(value) else f"{value:.3f}"

    rows = []
    for _, row in frame.iterrows():
        rows.append(
            (
                row["task"],
                NAMES[row["activation"]],
                str(row["rank"]),
                paper_place(row["activation"]),
                MISSING if np.isnan(row["paper"]) else f"{row['paper']:.1f}",
                spread_cell(row),
                interval_cell(row),
                f"{row['above_winner']:+.2f}" if row["activation"] != WINNER else MISSING,
                probability(row["p_winner"]),
                probability(row["p_best"]),
                f"{row['rate']:g}",
            )
        )
    seeds = int(frame["seeds"].min())
    measured = []
    for task in tasks(frame):
        metric, unit, chance = MEASURED[task]
        epsilon = frame.loc[frame["task"] == task, "epsilon"].iloc[0]
        measured.append(f"{task}: {metric} in % at ε = {epsilon} per {unit} (chance: {chance:g})")
    taus = "; ".join(
        f"{row['task']} {row['tau']:+.2f} ({row['tau_low']:+.2f} to {row['tau_high']:+.2f}, p = {row['p']:.3f})"
        for _, row in correlations.iterrows()
    )
    notes = (
        f"{'; '.join(measured)}. Mean and standard deviation over {seeds} seeds; intervals over seeds (Student's t, "
        "95%).",
        "“paper” is Table 4 of Ziller et al., AUC in %: their network and clips, and noise that really cost ε = 3.31.",
        "p: exact signed-rank tests (Wilcoxon), paired by seed, two-sided, corrected by Holm's method for the twelve "
        f"comparisons; with iGaussian, the paper's best, and with the best here. {seeds} seeds allow no corrected p "
        f"below {12 * 2 ** (1 - seeds):.3f}. Splits of different seeds share people, so the tests are somewhat "
        "optimistic.",
        f"Kendall's rank correlation with the paper's order of its ten (95%, bootstrap over seeds): {taus}.",
        "Noise is seeded, so it simulates and protects nobody. ε is computed from the ledger of every run.",
        spent,
    )
    headings = ("task", "activation", "rank", "rank in the paper", "paper", "ours", "95% interval")
    headings += ("less iGaussian", "p, iGaussian", "p, best", "rate")
    return Sheet("Activations at equal true ε", headings, tuple(rows), notes, names=2)


def paper_place(activation: str) -> str:
    """Return the rank of an activation in the paper's table."""
    ranked = list(reversed(PAPER))
    return str(ranked.index(activation) + 1) if activation in PAPER else MISSING


def figure(frame: pd.DataFrame) -> Figure:
    """Draw the activations of both tasks, best at the top, with intervals and what the paper prints."""
    with figure_style():
        tasks_shown = tasks(frame)
        canvas, panels = panel_grid(len(tasks_shown), len(tasks_shown), 4.6)
        for panel, task in zip(panels, tasks_shown, strict=True):
            metric, unit, chance = MEASURED[task]
            rows = frame[frame["task"] == task].reset_index(drop=True)
            _draw(panel, rows, paper=metric == "AUC")
            panel.axvline(chance, color=GREY, linestyle=":", linewidth=1, label="chance")
            panel.set_title(f"{task}, ε = {rows['epsilon'].iloc[0]} per {unit}", loc="left")
            panel.set_xlabel(f"{metric} in %")
        seeds = int(frame["seeds"].min())
        set_title(canvas, "Which activation works best under differential privacy? Thirteen, at equal true ε")
        meaning = (
            f"Mean of {seeds} seeds; bars: 95 % interval over seeds; people who only test; simulated noise.",
            "In brackets: rank among the ten in Table 4 of Ziller et al. Their areas are for another network and more "
            "clips, and cost ε = 3.31.",
        )
        set_legend(canvas, panels, *(wrap_text(line, SMALL, 0.97 * WIDTH) for line in meaning))
    return canvas


def _draw(panel: Axes, rows: pd.DataFrame, *, paper: bool) -> None:
    """Draw one line per activation, the first at the top."""
    heights = np.arange(len(rows))
    worse = (rows["p_best"] < SIGNIFICANT).to_numpy()
    looks = (
        (~worse, "black", "o", "the best, and all that cannot be told from it (p ≥ 0.05)"),
        (worse, "#777777", "s", "worse than the best (p < 0.05)"),
    )
    for chosen, colour, marker, label in looks:
        part = rows[chosen]
        bars = (part["mean"] - part["ci_low"]).to_numpy()
        panel.errorbar(
            part["mean"], heights[chosen], xerr=bars, fmt=marker, color=colour, capsize=3, markersize=6, label=label
        )
    if paper:
        panel.plot(
            rows["paper"], heights, linestyle="", marker="D", color="black", fillstyle="none", label="paper, as printed"
        )
    names = [
        NAMES[name] + (f" ({paper_place(name)})" if name in PAPER else "") for name in rows["activation"].astype(str)
    ]
    panel.set_yticks(heights, names)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.grid(axis="both", color="#DDDDDD", linewidth=0.6)
    panel.set_axisbelow(True)
