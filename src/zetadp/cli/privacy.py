"""The accounting commands: ``zetadp epsilon``, ``zetadp noise``, ``zetadp rounds``, ``zetadp ledger``.

They need no workflow and no data. They serve anyone who trains with Poisson sampling of patients.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from zetadp.cli.helping import explain, paragraphs
from zetadp.epsilon import rounded_up
from zetadp.privacy.units import PERSONS
from zetadp.validation import UserError

PLD = "privacy-loss distribution, an upper bound"
EXACT = "exact composition of Gaussians"

_SETTING = (
    "In every round each patient is drawn independently with the sampling probability. What the drawn patients add is "
    "clipped to a norm, and summed. The noise on the sum has standard deviation (noise multiplier x clipping norm) in "
    "the real and in the imaginary part of every coordinate. Compared are cohorts with and without the contribution of "
    "one patient."
)
_TOTAL_VARIANCE = (
    "A complex draw of torch.randn has this variance in both parts together, half of it in each. If noise is made so, "
)
_LEAST_NOISE = 1e-3
_LINES = (
    "The line that begins with epsilon is the figure to quote, and says which accountant found it. The two lines below "
    "it are for comparison."
)


def add_commands(commands: Any) -> None:  # noqa: ANN401  (argparse does not name the type)
    """Add the accounting commands to a parser's sub-commands."""
    given = f"{_TOTAL_VARIANCE}give the noise multiplier divided by sqrt(2)."
    _command(
        commands,
        "epsilon",
        "what a training costs: epsilon from noise, sampling and rounds",
        given,
        "--noise-multiplier 42.57 --sampling-probability 24/44 --rounds 917 --delta 1e-3",
        "epsilon 0.9995 at delta 0.001 (privacy-loss distribution, an upper bound)",
        _epsilon,
        noise=True,
        rounds=True,
    )
    _command(
        commands,
        "noise",
        "the least noise multiplier that meets an epsilon",
        f"{_TOTAL_VARIANCE}use the printed noise multiplier times sqrt(2).",
        "--epsilon 1 --sampling-probability 24/44 --rounds 917 --delta 1e-3",
        "noise multiplier 42.551",
        _noise,
        target=True,
        rounds=True,
    )
    _command(
        commands,
        "rounds",
        "how many rounds an epsilon allows",
        given,
        "--epsilon 1 --sampling-probability 24/44 --noise-multiplier 42.57 --delta 1e-3",
        "rounds 917",
        _rounds,
        target=True,
        noise=True,
    )
    _add_ledger(commands)
    _add_permit(commands)


def _add_ledger(commands: Any) -> None:  # noqa: ANN401
    ledger = commands.add_parser("ledger", help="print the privacy statement of one ledger, or of several together")
    explain(
        ledger,
        "State what the training runs and releases recorded in ledger files cost their patients. Several files "
        "compose: give those of all runs on the same patients, and no others. Interrupted and repeated runs count too. "
        "Two totals are printed: of the runs with noise, and of all runs. The second is none as soon as one run had no "
        "noise.",
        "A ledger that your own program writes with zetadp.privacy.ledger may declare in its header the number of "
        'rounds ("training": {"rounds": T}) and the source of the noise ("noise": "os" or "seeded"). Without the '
        "first, the rounds that happened are counted. Without the second, the noise is taken to be seeded. The end of "
        "the statement says which of the two was missing.",
        "The workflow stores the ledgers of a cohort in ledgers/NAME, with the name of the cohort in config.yaml.",
        examples=("ledger ledgers/phantom-no-atlas/*.jsonl --unit patient", "ledger rows.jsonl --delta 1e-5 --json"),
    )
    ledger.add_argument("files", type=Path, nargs="+", metavar="FILE", help="ledger file (.jsonl)")
    ledger.add_argument("--delta", type=delta, default=1e-3, help="delta of the statement (default: %(default)s)")
    ledger.add_argument(
        "--unit",
        choices=(*PERSONS, "record"),
        default="record",
        help="patient (or speaker) only where all records of a person are one record, or were merged by a patient key, "
        "as cohort.unit says in the configuration; record also states what several records of one person cost "
        "(default: %(default)s)",
    )
    ledger.add_argument("--json", action="store_true", help="print JSON")
    ledger.set_defaults(run=_ledger)


def _add_permit(commands: Any) -> None:  # noqa: ANN401
    permit = commands.add_parser("permit", help="permit another training of a finished run on real patients")
    explain(
        permit,
        "With noise from the operating system, a run is trained once. A job that would train it again, because of new "
        "settings or an edited library, stops and names the total epsilon that this would lead to. This command writes "
        "one permission into the run's ledger and prints that total.",
        examples=(
            "permit ledgers/hospital/decathlon-complex-federated-eps-8-seed-0.jsonl",
            "permit rows.jsonl --delta 1e-5",
        ),
    )
    permit.add_argument("file", type=Path, metavar="FILE", help="the run's ledger (.jsonl)")
    permit.add_argument("--delta", type=delta, default=1e-3, help="delta of the totals (default: %(default)s)")
    permit.set_defaults(run=_permit)


def _command(
    commands: Any,  # noqa: ANN401
    name: str,
    help_: str,
    total_variance: str,
    example: str,
    answer: str,
    run: Callable[[argparse.Namespace], None],
    *,
    target: bool = False,
    noise: bool = False,
    rounds: bool = False,
) -> None:
    parser = commands.add_parser(
        name,
        help=help_,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=paragraphs(f"Print {help_}. {_LINES}", _SETTING, total_variance),
        epilog=f"example:\n  zetadp {name} {example}\nprints, among others:\n  {answer}\n\n"
        f"with all digits, for programs:\n  zetadp {name} {example} --json",
    )
    if target:
        parser.add_argument("--epsilon", type=positive_number, required=True, help="target epsilon, as 1, 3 or 8")
    if noise:
        parser.add_argument(
            "--noise-multiplier",
            type=_noise_multiplier,
            required=True,
            metavar="SIGMA",
            help="standard deviation of the noise in each part, divided by the clipping norm",
        )
    parser.add_argument(
        "--sampling-probability",
        type=probability,
        required=True,
        metavar="P",
        help="chance of a patient to be drawn in a round: 0.5 or 24/44; 1 where all take part in every round",
    )
    if rounds:
        parser.add_argument(
            "--rounds", type=count, required=True, metavar="T", help="number of rounds: noisy steps, not epochs"
        )
    parser.add_argument(
        "--delta",
        type=delta,
        required=True,
        help="chance at which epsilon may not hold, as 1e-3; below one in the number of patients",
    )
    parser.add_argument("--json", action="store_true", help="print JSON with all digits")
    parser.set_defaults(run=run)


def _epsilon(given: argparse.Namespace) -> None:
    _print_epsilon(given, given.noise_multiplier, given.rounds, {})


def _noise(given: argparse.Namespace) -> None:
    from zetadp.privacy.calibration import noise_for_epsilon

    found = noise_for_epsilon(given.epsilon, given.delta, given.sampling_probability, given.rounds)
    _print_epsilon(given, found, given.rounds, {"noise_multiplier": found})


def _rounds(given: argparse.Namespace) -> None:
    from zetadp.privacy.calibration import rounds_for

    found = rounds_for(given.epsilon, given.delta, given.sampling_probability, given.noise_multiplier)
    if found == 0:
        raise UserError(
            f"Not even one round with noise multiplier {given.noise_multiplier:g} costs at most epsilon "
            f"{given.epsilon:g} at delta {given.delta:g}. Use more noise, or draw patients less often."
        )
    _print_epsilon(given, given.noise_multiplier, found, {"rounds": found})


def _print_epsilon(given: argparse.Namespace, noise: float, rounds: int, answer: dict[str, float]) -> None:
    """Print the answer asked for, and the epsilon of the resulting training by every accountant."""
    from zetadp.privacy import accounting, gaussian

    mechanisms = {(given.sampling_probability, noise): rounds}
    exact = accounting.exact_mu(mechanisms) is not None
    quoted = accounting.epsilon(mechanisms, given.delta)
    renyi = accounting.epsilon_rdp(mechanisms, given.delta)
    limit = gaussian.epsilon(given.delta, accounting.central_limit_mu(given.sampling_probability, noise, rounds))
    if given.json:
        content = {
            **answer,
            "epsilon": _finite(quoted),
            "accountant": EXACT if exact else PLD,
            "epsilon_rdp": _finite(renyi),
            "epsilon_central_limit_not_a_bound": _finite(limit),
            "delta": given.delta,
            "sampling_probability": given.sampling_probability,
            "noise_multiplier": noise,
            "rounds": rounds,
        }
        print(json.dumps(content, indent=2))
        return
    for name, value in answer.items():
        print(f"{name.replace('_', ' ')} {value:g}")
    print(f"epsilon {rounded_up(quoted)} at delta {given.delta:g} ({EXACT if exact else PLD})")
    print(f"        {rounded_up(renyi)} by the Renyi accountant, a looser upper bound")
    print(f"        {limit:.4g} by the central limit, which is not a bound and is here for comparison only")


def _ledger(given: argparse.Namespace) -> None:
    from zetadp.privacy.account import read_ledgers
    from zetadp.privacy.exposure import noise_of, runs_of, unstated
    from zetadp.privacy.statement import Terms, total_statement
    from zetadp.privacy.wording import plain_text

    # A file that two patterns match was released once.
    files = list({path.resolve(): path for path in given.files}.values())
    ledgers = read_ledgers(files)
    runs = [run for path, attempts in ledgers.items() for run in runs_of(path, attempts)]
    if not runs:
        raise UserError(f"Expected records of training rounds in {', '.join(map(str, files))}, found none.")
    statement = total_statement(runs, Terms(given.delta, given.unit, noise_of(runs)))
    notes = unstated(ledgers)
    if given.json:
        print(json.dumps({**statement, "not_stated": notes}, indent=2))
        return
    print(plain_text(statement), end="")
    if notes:
        print("\n  - ".join(["Not stated in the ledgers:", *notes]))


def _permit(given: argparse.Namespace) -> None:
    from zetadp.privacy.account import Permission
    from zetadp.privacy.ledger import Ledger, read_ledger

    read_ledger(given.file)  # a ledger that is not there must not be made
    with Ledger(given.file) as ledger:
        ledger.permit()
    print(f"Attempt {ledger.permitted} is permitted: {Permission(given.delta).cost(given.file)}.")
    print(
        "In the pipeline, start it with: snakemake --forcerun MODEL.safetensors, where MODEL.safetensors is its model."
    )


def _finite(epsilon: float) -> float | str:
    """Return a number that JSON can hold; infinity becomes a string."""
    return "inf" if epsilon == math.inf else epsilon


def _number(text: str) -> float:
    try:
        return float(Fraction(text.replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected a number such as 0.5, 1e-3 or 24/44, found {text!r}") from None


def _number_that(expected: str, fits: Callable[[float], bool], why: str = "") -> Callable[[str], float]:
    """Return a function that reads a number from the command line and refuses one out of range."""

    def read(text: str) -> float:
        value = _number(text)
        if not fits(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text!r}{why}")
        return value

    return read


positive_number = _number_that("a number above zero", lambda value: value > 0)
probability = _number_that("a probability above zero and at most 1", lambda value: 0 < value <= 1)
_noise_multiplier = _number_that(
    f"a noise multiplier of at least {_LEAST_NOISE:g}", lambda value: value >= _LEAST_NOISE, ": so little hides nobody"
)


def delta(text: str) -> float:
    """Read a delta from a command line."""
    from zetadp.privacy.accounting import SMALLEST_DELTA

    value = positive_number(text)
    if not SMALLEST_DELTA <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a delta from {SMALLEST_DELTA:g} to 1, found {text!r}")
    return value


def count(text: str) -> int:
    """Read a whole number above zero from a command line."""
    value = positive_number(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r}")
    return int(value)
