"""Check our epsilon with a second tight accountant, on a grid of sampling rates, noise levels and rounds.

Our epsilon is an upper bound from the privacy-loss distribution. For each setting with an epsilon between 0.1 and 20,
it must lie between the lower and the upper bound of Opacus's accountant (privacy random variables, with an error of at
most 0.2 % of epsilon). The two accountants share no code. Renyi and central-limit figures are given for comparison.

Writes all cases as CSV and a summary as Markdown. The exit code is 1 if an epsilon lies outside its bounds.

    python benchmarks/accountants.py
    python benchmarks/accountants.py --rounds 1 917 --probabilities 0.5 --csv cases.csv --markdown summary.md
"""

from __future__ import annotations

import argparse
import sys
import time
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from prv import epsilon_bracket

from zetadp.base.storage import write_text
from zetadp.privacy import accounting, gaussian
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from collections.abc import Sequence

RESULTS = Path(__file__).parents[1] / "docs/results"
SMALLEST, LARGEST = 0.1, 20.0
PROBABILITIES = ("1/100", "24/484", "1/5", "24/44", "9/10")
NOISES = (0.6, 1.2, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
ROUNDS = (1, 10, 100, 917, 10_083)
DELTAS = (1e-3, 1e-5)
HEAD = """\
# Quoted epsilon against a second accountant

Every case is in `accountants.csv`. The quoted figure (PLD, an upper bound) has to lie inside the bracket of Opacus's
PRV accountant, whose error is at most 0.2 % of epsilon.
"""


def declared() -> tuple[str, str]:
    """Return the origin of the table: it has neither cohort nor seed."""
    return "none", "none, nothing is drawn"


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probabilities", nargs="+", default=PROBABILITIES, metavar="P", help="such as 0.5 or 24/44")
    parser.add_argument("--noises", nargs="+", type=float, default=NOISES, metavar="SIGMA", help="noise multipliers")
    parser.add_argument("--rounds", nargs="+", type=int, default=ROUNDS, metavar="T")
    parser.add_argument("--deltas", nargs="+", type=float, default=DELTAS, metavar="DELTA")
    parser.add_argument("--csv", type=Path, default=RESULTS / "accountants.csv", help="every case (%(default)s)")
    parser.add_argument("--markdown", type=Path, default=RESULTS / "accountants.md", help="summary (%(default)s)")
    return parser.parse_args(arguments)


def measured(probability: float, noise: float, rounds: int, delta: float) -> dict[str, float] | None:
    """Return all figures of one setting, or None where epsilon is out of range."""
    mechanisms = {(probability, noise): rounds}
    # A coarse grid shows cheaply whether epsilon is in range.
    if not SMALLEST <= accounting.epsilon_pld(mechanisms, delta, tolerance=1.0) <= LARGEST:
        return None
    start = time.process_time()
    quoted = accounting.epsilon_pld(mechanisms, delta)
    between = time.process_time()
    lower, estimate, upper = epsilon_bracket(mechanisms, delta)
    end = time.process_time()
    limit = accounting.central_limit_mu(probability, noise, rounds)
    return {
        "sampling_probability": probability,
        "noise_multiplier": noise,
        "rounds": rounds,
        "delta": delta,
        "epsilon_pld": quoted,
        "prv_lower": lower,
        "prv_estimate": estimate,
        "prv_upper": upper,
        "inside": lower <= quoted <= upper,
        "epsilon_rdp": accounting.epsilon_rdp(mechanisms, delta),
        "epsilon_central_limit": gaussian.epsilon(delta, limit),
        "seconds_pld": between - start,
        "seconds_prv": end - between,
    }


def summary(cases: pd.DataFrame) -> str:
    """Return the cases as Markdown: one row for each sampling probability and number of rounds."""
    estimate = cases["prv_estimate"]
    figures = cases.assign(
        deviation=100 * (cases["epsilon_pld"] / estimate - 1),
        below=100 * (cases["prv_lower"] / estimate - 1),
        above=100 * (cases["prv_upper"] / estimate - 1),
        renyi=100 * (cases["epsilon_rdp"] / cases["epsilon_pld"] - 1),
        limit=100 * (cases["epsilon_central_limit"] / cases["epsilon_pld"] - 1),
    )
    lines = [
        "| p | rounds | cases | epsilon | inside | PLD against PRV's estimate, % | PRV's bracket, % "
        "| Renyi above PLD, % | central limit against PLD, % |",
        "|--:|--:|--:|:--|--:|:--|:--|:--|:--|",
    ]
    for (probability, rounds), group in figures.groupby(["sampling_probability", "rounds"]):
        epsilons = f"{group['epsilon_pld'].min():.3g} to {group['epsilon_pld'].max():.3g}"
        inside = f"{int(group['inside'].sum())} of {len(group)}"
        deviations = f"{group['deviation'].min():+.3f} to {group['deviation'].max():+.3f}"
        bracket = f"{group['below'].min():+.2f} to {group['above'].max():+.2f}"
        renyi = f"{group['renyi'].min():.0f} to {group['renyi'].max():.0f}"
        limit = f"{group['limit'].min():+.1f} to {group['limit'].max():+.1f}"
        lines.append(
            f"| {probability:.4g} | {rounds} | {len(group)} | {epsilons} | {inside} | {deviations} | {bracket} | "
            f"{renyi} | {limit} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure the grid, write both files, and return whether every epsilon lies inside its bounds."""
    given = parsed()
    grid = list(product(given.probabilities, given.rounds, given.deltas, given.noises))
    rows = []
    start = time.process_time()
    for number, (probability, rounds, delta, noise) in enumerate(grid, start=1):
        row = measured(float(Fraction(probability)), noise, rounds, delta)
        if row is not None:
            rows.append(row)
        if number % 20 == 0:
            print(f"{number} of {len(grid)} settings, {len(rows)} in range", file=sys.stderr)
    if not rows:
        print(f"No setting has epsilon between {SMALLEST} and {LARGEST}.", file=sys.stderr)
        return 1
    cases = pd.DataFrame(rows)
    made = origin(*declared())
    write_text(given.csv, to_csv(cases, made, float_format="%.6g"))
    outside = cases[~cases["inside"]]
    minutes = (time.process_time() - start) / 60
    text = (
        f"{len(cases)} settings with epsilon from {SMALLEST:g} to {LARGEST:g}, of {len(grid)} in the grid: "
        f"{len(cases) - len(outside)} inside the bracket, {len(outside)} outside. "
        f"It took {minutes:.1f} minutes of processor time.\n"
    )
    listed = "\n".join(f"- {line}" for line in made)
    write_text(given.markdown, f"{HEAD}\n{text}\n{summary(cases)}\n{listed}\n")
    print(text, end="")
    print(outside.to_string() if len(outside) else f"{given.csv}\n{given.markdown}")
    return 1 if len(outside) else 0


if __name__ == "__main__":
    sys.exit(main())
