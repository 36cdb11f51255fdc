"""The accounting commands: ``zetadp epsilon``, ``noise``, ``rounds``, ``ledger`` and ``permit``.

They need no workflow and no data. Anyone who trains with Poisson sampling of patients can use them.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.cli.helping import explain, paragraphs
from zetadp.cli.numbers import count, delta, number_that, positive_number, probability
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


def add_commands(commands: Any) -> None:  # noqa: ANN401  (argparse does not name the type)
    """Add the accounting commands to a parser's sub-commands."""
    given = f"{_TOTAL_VARIANCE}give the noise multiplier divided by sqrt(2)."
    _command(
        commands,
        "epsilon",
        "the epsilon of a training run, from its noise, sampling and rounds",
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
        "the smallest noise multiplier that meets an epsilon",
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
        "the largest number of rounds that an epsilon allows",
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
        "State the cost in privacy of the runs and releases that ledger files record. Several files are accounted "
        "together: give the files of all runs on the same patients, and no others. Interrupted and repeated runs count "
        "too. Two totals are printed: one for the runs with noise, and one for all runs. The second is none if any run "
        "had no noise.",
        "Unit, delta and source of the noise are those that the ledgers declare. A ledger that your own program writes "
        'with zetadp.privacy.ledger must declare them in its header: "unit" (patient, speaker or record), "delta", '
        '"noise" ("os" or "seeded") and the number of rounds ("training": {"rounds": T}). Files that were chosen after '
        "earlier results are added up by a privacy filter, and the statement says so. Where a register lies beside the "
        "files, nothing that it names may be missing.",
        "The workflow stores the ledgers of a cohort in ledgers/NAME. NAME is the cohort's name in config.yaml. The "
        "folder of a run stands for its ledger.",
        examples=("ledger ledgers/phantom-no-atlas/*.jsonl", "ledger rows.jsonl --json", "ledger runs/mine"),
    )
    ledger.add_argument("files", type=Path, nargs="+", metavar="FILE", help="ledger file (.jsonl), or folder of a run")
    ledger.add_argument("--json", action="store_true", help="print JSON")
    ledger.set_defaults(run=_ledger)


def _add_permit(commands: Any) -> None:  # noqa: ANN401
    permit = commands.add_parser("permit", help="permit another attempt of a finished run on real patients")
    explain(
        permit,
        "With noise from the operating system, a run is trained once. A job that would train it again, because of new "
        "settings or an edited library, stops and prints the total epsilon after such an attempt. This command prints "
        "that total and asks. After the answer yes, it writes one permission into the run's ledger.",
        examples=(
            "permit ledgers/hospital/decathlon-complex-federated-eps-8-seed-0.jsonl",
            "permit rows.jsonl --delta 1e-5 --yes",
        ),
    )
    permit.add_argument("file", type=Path, metavar="FILE", help="the run's ledger (.jsonl)")
    permit.add_argument("--delta", type=delta, default=1e-3, help="delta of the totals (default: %(default)s)")
    permit.add_argument("--yes", action="store_true", help="permit it without a question, in programs")
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
        help=f"print {help_}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=paragraphs(f"Print {help_}. {_LINES}", _SETTING, total_variance),
        epilog=f"example:\n  zetadp {name} {example}\nprints, among others:\n  {answer}\n\n"
        f"with all digits, for programs:\n  zetadp {name} {example} --json",
    )
    if target:
        parser.add_argument("--epsilon", type=positive_number, required=True, help="target epsilon, such as 1, 3 or 8")
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
        help="probability that a patient is drawn in a round, such as 0.5 or 24/44; 1 if all take part in every round",
    )
    if rounds:
        parser.add_argument(
            "--rounds", type=count, required=True, metavar="T", help="number of rounds: noisy steps, not epochs"
        )
    parser.add_argument(
        "--delta",
        type=delta,
        required=True,
        help="probability for which epsilon allows an exception, such as 1e-3; less than 1 / number of patients",
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


def _ledger(given: argparse.Namespace) -> None:
    from zetadp.cli.places import ledger_of
    from zetadp.privacy.book import read_ledgers
    from zetadp.privacy.exposure import runs_of
    from zetadp.privacy.statement import total_statement
    from zetadp.privacy.wording import plain_text

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


def _permit(given: argparse.Namespace) -> None:
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
