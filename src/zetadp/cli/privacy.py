"""The accounting commands: ``zetadp epsilon``, ``noise``, ``rounds``, ``ledger`` and ``permit``.

They need no workflow and no data. Anyone who trains with Poisson sampling of patients can use them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.cli.helping import (
    Command,
    Option,
    command,
    count,
    delta,
    number_that,
    option,
    paragraphs,
    positive_number,
    probability,
)
from zetadp.privacy.kinds import NoisySum

PLD = "privacy-loss distribution, an upper bound"
EXACT = "exact composition of Gaussians"

_SETTING = (
    "In every round each patient is drawn independently with the sampling probability. The contribution of each drawn "
    "patient is clipped to a norm, and the contributions are summed. The noise on the sum has standard deviation "
    "(noise multiplier x clipping norm) in the real and in the imaginary part of every coordinate. The guarantee "
    "compares cohorts with and without the contribution of one patient."
)
_TOTAL_VARIANCE = (
    "A complex draw of torch.randn splits this variance between the two parts, half in each. If your noise is made "
    "that way, "
)
_LEAST_NOISE = 1e-3
_noise_multiplier = number_that(
    f"a noise multiplier of at least {_LEAST_NOISE:g}", lambda value: value >= _LEAST_NOISE, ": so little hides nobody"
)
_LINES = (
    "Quote the line that begins with epsilon, which names its accountant. The two lines below it are for comparison."
)
_EPSILON = option("--epsilon", type=positive_number, required=True, help="target epsilon, such as 1, 3 or 8")
_NOISE = option(
    "--noise-multiplier",
    type=_noise_multiplier,
    required=True,
    metavar="SIGMA",
    help="standard deviation of the noise in each part, divided by the clipping norm",
)
_PROBABILITY = option(
    "--sampling-probability",
    type=probability,
    required=True,
    metavar="P",
    help="probability that a patient is drawn in a round, such as 0.5 or 24/44; 1 if all take part in every round",
)
_ROUNDS = option("--rounds", type=count, required=True, metavar="T", help="number of rounds: noisy steps, not epochs")
_OF_ALL = (
    option(
        "--delta",
        type=delta,
        required=True,
        help="probability for which epsilon allows an exception, such as 1e-3; less than 1 / number of patients",
    ),
    option("--json", action="store_true", help="print JSON with all digits"),
)


def _accounting(
    name: str, total_variance: str, example: str, answer: str, *options: Option
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """Declare a command that computes one of epsilon, noise and rounds from the others."""
    below = (
        f"example:\n  zetadp {name} {example}\nprints, among others:\n  {answer}\n\n"
        f"with all digits, for programs:\n  zetadp {name} {example} --json"
    )

    def declared(run: Callable[[argparse.Namespace], None]) -> Command:
        made = command(name, below=below, options=(*options, *_OF_ALL))(run)
        summary = f"{made.summary[0].upper()}{made.summary[1:]}. {_LINES}"
        return replace(made, description=paragraphs(summary, _SETTING, f"{_TOTAL_VARIANCE}{total_variance}"))

    return declared


@_accounting(
    "epsilon",
    "give the noise multiplier divided by sqrt(2).",
    "--noise-multiplier 42.57 --sampling-probability 24/44 --rounds 917 --delta 1e-3",
    "epsilon 0.9995 at delta 0.001 (privacy-loss distribution, an upper bound)",
    _NOISE,
    _PROBABILITY,
    _ROUNDS,
)
def epsilon(given: argparse.Namespace) -> None:
    """Print the epsilon of a training run, from its noise, sampling and rounds."""
    _print_epsilon(given, given.noise_multiplier, given.rounds, {})


@_accounting(
    "noise",
    "use the printed noise multiplier times sqrt(2).",
    "--epsilon 1 --sampling-probability 24/44 --rounds 917 --delta 1e-3",
    "noise multiplier 42.551",
    _EPSILON,
    _PROBABILITY,
    _ROUNDS,
)
def noise(given: argparse.Namespace) -> None:
    """Print the smallest noise multiplier that meets an epsilon."""
    from zetadp.privacy.calibration import noise_for_epsilon

    found = noise_for_epsilon(given.epsilon, given.delta, given.sampling_probability, given.rounds)
    _print_epsilon(given, found, given.rounds, {"noise_multiplier": found})


@_accounting(
    "rounds",
    "give the noise multiplier divided by sqrt(2).",
    "--epsilon 1 --sampling-probability 24/44 --noise-multiplier 42.57 --delta 1e-3",
    "rounds 917",
    _EPSILON,
    _NOISE,
    _PROBABILITY,
)
def rounds(given: argparse.Namespace) -> None:
    """Print the largest number of rounds that an epsilon allows."""
    from zetadp.privacy.calibration import rounds_for

    found = rounds_for(given.epsilon, given.delta, given.sampling_probability, given.noise_multiplier)
    if found == 0:
        raise UserError(
            f"Not even one round with noise multiplier {given.noise_multiplier:g} costs at most epsilon "
            f"{given.epsilon:g} at delta {given.delta:g}. Use more noise, or draw patients less often."
        )
    _print_epsilon(given, given.noise_multiplier, found, {"rounds": found})


def _print_epsilon(given: argparse.Namespace, noise: float, rounds: int, answer: dict[str, float]) -> None:
    """Print the answer, and the epsilon of the resulting run by every accountant."""
    from zetadp.privacy import accounting, gaussian

    mechanisms: accounting.Exposure = {NoisySum(given.sampling_probability, noise): rounds}
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


@command(
    "ledger",
    examples=("ledger ledgers/phantom-no-atlas/*.jsonl", "ledger rows.jsonl --json", "ledger runs/mine"),
    options=[
        option("files", type=Path, nargs="+", metavar="FILE", help="ledger file (.jsonl), or folder of a run"),
        option("--json", action="store_true", help="print JSON"),
    ],
)
def ledger(given: argparse.Namespace) -> None:
    """Print the privacy statement of one ledger, or of several together.

    State the cost in privacy of the runs and releases that ledger files record. Several files are accounted together:
    give the files of all runs on the same patients, and no others. Interrupted and repeated runs count too. Two totals
    are printed: one for the runs with noise, and one for all runs. The second is none if any run had no noise.

    Unit, delta and source of the noise are those that the ledgers declare. A ledger that your own program writes with
    zetadp.privacy.ledger must declare them in its header: "unit" (patient, speaker or record), "delta", "noise" ("os"
    or "seeded") and the number of rounds ("training": {"rounds": T}). Files that were chosen after earlier results are
    added up by a privacy filter, and the statement says so. Where a register lies beside the files, nothing that it
    names may be missing.

    The workflow stores the ledgers of a cohort in ledgers/NAME. NAME is the cohort's name in config.yaml. The folder of
    a run stands for its ledger.
    """
    from zetadp.cli.runs import ledger_of
    from zetadp.privacy.book import read_ledgers
    from zetadp.privacy.exposure import runs_of
    from zetadp.privacy.statement import plain_text, total_statement

    # A file that two patterns match counts once.
    files = list({path.resolve(): path for path in map(ledger_of, given.files)}.values())
    ledgers = read_ledgers(files)
    runs = [run for path, attempts in ledgers.items() for run in runs_of(path, attempts)]
    if not runs:
        raise UserError(f"Expected records of training rounds in {', '.join(map(str, files))}, found none.")
    statement = total_statement(runs)
    if given.json:
        print(json.dumps(statement, indent=2))
        return
    print(plain_text(statement), end="")


@command(
    "permit",
    examples=(
        "permit ledgers/hospital/decathlon-complex-federated-eps-8-seed-0.jsonl",
        "permit rows.jsonl --delta 1e-5 --yes",
    ),
    options=[
        option("file", type=Path, metavar="FILE", help="the run's ledger (.jsonl)"),
        option("--delta", type=delta, default=1e-3, help="delta of the totals (default: %(default)s)"),
        option("--yes", action="store_true", help="permit it without a question, in programs"),
    ],
)
def permit(given: argparse.Namespace) -> None:
    """Permit another attempt of a finished run on real patients.

    With noise from the operating system, a run is trained once. A job that would train it again, because of new
    settings or an edited library, stops and prints the total epsilon after such an attempt. This command prints that
    total and asks. After the answer yes, it writes one permission into the run's ledger.
    """
    from zetadp.privacy.budget import Permission
    from zetadp.privacy.ledger import Ledger, read_ledger

    read_ledger(given.file)  # fails where there is no ledger: `Ledger` would create one
    print(f"With another attempt, {Permission(given.delta).cost(given.file)}.")
    if not (given.yes or _answer("Permit it? Answer yes or no: ") == "yes"):
        raise UserError(f"Expected the answer yes, so nothing was permitted in {given.file}. Programs say --yes.")
    with Ledger(given.file) as ledger:
        ledger.permit()
    print(f"Attempt {ledger.permitted} is permitted.")
    print(
        "In the pipeline, start it with: snakemake --forcerun MODEL.safetensors, where MODEL.safetensors is the "
        "run's model."
    )


def _answer(question: str) -> str:
    """Return the user's answer to a question, empty where nobody is there to answer."""
    try:
        return input(question).strip().casefold()
    except EOFError:
        return ""


def _finite(epsilon: float) -> float | str:
    """Return a number that JSON can hold; infinity becomes a string."""
    return "inf" if epsilon == math.inf else epsilon
