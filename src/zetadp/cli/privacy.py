"""The accounting commands: ``zetadp epsilon``, ``noise``, ``rounds``, ``ledger`` and ``permit``.

They need no workflow and no data. Anyone who trains with Poisson sampling of patients can use them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import Delta, rounded_up
from zetadp.base.runfolder import RunFolder
from zetadp.base.validation import Count, Positive, UserError, Within
from zetadp.cli.arguments import Probability

TargetEpsilon = Annotated[Positive, "target epsilon, such as 1, 3 or 8"]
NoiseMultiplier = Annotated[
    float,
    Within(ge=1e-3),  # less hides nobody
    "standard deviation of the noise in the real and in the imaginary part, divided by the clipping norm",
    "SIGMA",
]
SamplingProbability = Annotated[
    Probability,
    "probability that a patient is drawn in a round, such as 0.5 or 24/44; 1 if all patients take part in every round",
    "P",
]
Rounds = Annotated[Count, "number of rounds: noisy steps, not epochs", "T"]
AtDelta = Annotated[
    Delta, "probability with which the bound epsilon may fail, such as 1e-3; less than 1 / number of patients"
]
AsJson = Annotated[bool, "print JSON with all digits"]


def epsilon(
    *,
    noise_multiplier: NoiseMultiplier,
    sampling_probability: SamplingProbability,
    rounds: Rounds,
    delta: AtDelta,
    json_: AsJson = False,
) -> None:
    """Print the epsilon of a training run, from its noise, sampling and rounds.

    In every round each patient is drawn independently with the sampling probability. The contribution of each drawn
    patient is clipped to a norm, and the contributions are summed. The noise on the sum has standard deviation (noise
    multiplier x clipping norm) in the real and in the imaginary part of every coordinate. The guarantee compares
    cohorts with and without the contribution of one patient.

    A complex draw of torch.randn splits its variance between the two parts, half in each. If you draw noise that way,
    give the noise multiplier divided by sqrt(2).

    Examples
    --------
    zetadp epsilon --noise-multiplier 42.57 --sampling-probability 24/44 --rounds 917 --delta 1e-3
    zetadp epsilon --noise-multiplier 42.57 --sampling-probability 24/44 --rounds 917 --delta 1e-3 --json
    """
    _print_epsilon(sampling_probability, noise_multiplier, rounds, delta, json_, {})


def noise(
    *,
    epsilon: TargetEpsilon,
    sampling_probability: SamplingProbability,
    rounds: Rounds,
    delta: AtDelta,
    json_: AsJson = False,
) -> None:
    """Print the smallest noise multiplier that meets an epsilon.

    zetadp epsilon --help describes the training. A complex draw of torch.randn splits its variance between the real and
    the imaginary part, half in each. If you draw noise that way, multiply the printed noise multiplier by sqrt(2).

    Examples
    --------
    zetadp noise --epsilon 1 --sampling-probability 24/44 --rounds 917 --delta 1e-3
    zetadp noise --epsilon 1 --sampling-probability 24/44 --rounds 917 --delta 1e-3 --json
    """
    from zetadp.accounting.calibration import noise_for_epsilon

    multiplier = noise_for_epsilon(epsilon, delta, sampling_probability, rounds)
    _print_epsilon(sampling_probability, multiplier, rounds, delta, json_, {"noise_multiplier": multiplier})


def rounds(
    *,
    epsilon: TargetEpsilon,
    noise_multiplier: NoiseMultiplier,
    sampling_probability: SamplingProbability,
    delta: AtDelta,
    json_: AsJson = False,
) -> None:
    """Print the largest number of rounds that an epsilon allows.

    zetadp epsilon --help describes the training, and what to do about noise from a complex draw of torch.randn.

    Examples
    --------
    zetadp rounds --epsilon 1 --sampling-probability 24/44 --noise-multiplier 42.57 --delta 1e-3
    zetadp rounds --epsilon 1 --sampling-probability 24/44 --noise-multiplier 42.57 --delta 1e-3 --json
    """
    from zetadp.accounting.calibration import rounds_for

    count = rounds_for(epsilon, delta, sampling_probability, noise_multiplier)
    if count == 0:
        raise UserError(
            f"Not even one round with noise multiplier {noise_multiplier:g} costs at most epsilon "
            f"{epsilon:g} at delta {delta:g}. Use more noise, or draw patients less often."
        )
    _print_epsilon(sampling_probability, noise_multiplier, count, delta, json_, {"rounds": count})


def _print_epsilon(
    probability: float, noise: float, rounds: int, delta: float, as_json: bool, answer: dict[str, float]
) -> None:
    """Print the answer, and the epsilon of the resulting run with the name of its accountant."""
    from zetadp.accounting.composition import quoted
    from zetadp.own import promises

    bound = promises.epsilon(noise_multiplier=noise, sampling_probability=probability, rounds=rounds, delta=delta)
    _, accountant = quoted({NoisySum(probability, noise): rounds}, delta)
    mechanism = {"delta": delta, "sampling_probability": probability, "noise_multiplier": noise, "rounds": rounds}
    if as_json:
        epsilon = "inf" if bound == math.inf else bound
        print(json.dumps({**mechanism, **answer, "epsilon": epsilon, "accountant": accountant}, indent=2))
        return
    for name, value in answer.items():
        print(f"{name.replace('_', ' ')} {value:g}")
    print(f"epsilon {rounded_up(bound)} at delta {delta:g} ({accountant})")


def ledger(
    files: Annotated[Sequence[Path], "ledger (.jsonl), folder of a run, or folder of ledgers", "FILE"],
    *,
    json_: Annotated[bool, "print JSON"] = False,
) -> None:
    """Print the privacy statement of one ledger, or of several together.

    The statement gives the cost in privacy of the runs and releases that the ledgers record. Several files are
    accounted together: give the files of all runs on the same patients, and no others. A folder stands for all ledgers
    in it, and for those of cohorts that share its patients. Interrupted and repeated runs count too. There are two
    totals: one for the runs with noise, and one for all runs. The second gives no guarantee if any run had no noise.

    Unit, delta and source of the noise are those that the ledgers declare. A ledger that your own program writes with
    zetadp.account.ledger begins with a zetadp.account.declaration.Declaration of them: cohort_unit (patient, speaker or
    record), delta, noise (os or seeded) and the number of rounds (training={"rounds": T}). If runs were chosen after
    earlier results, their sum is a promise only up to a limit that was set before the first of them. Without a limit,
    the statement prints an odometer, which holds whenever training stops. If a register lies next to the files, every
    ledger that it names must be there.

    The workflow stores the ledgers of a cohort in ledgers/NAME. NAME is the cohort's name in config.yaml. The folder of
    a run stands for its ledger.

    Examples
    --------
    zetadp ledger ledgers/phantom-no-atlas
    zetadp ledger rows.jsonl --json
    zetadp ledger runs/mine
    """
    from zetadp.account.book import Book
    from zetadp.account.recorded import recorded_in
    from zetadp.account.statement import total_statement

    # A file that two patterns match counts once.
    ledgers = list({path.resolve(): path for path in map(recorded_in, files)}.values())
    book = Book.of(*ledgers)
    runs = book.runs()
    if not runs:
        raise UserError(f"Expected releases in {', '.join(map(str, ledgers))}, found none.")
    statement = total_statement(runs, shared=book.shared)
    if json_:
        print(json.dumps(statement, indent=2))
        return
    print(statement.text, end="")


def permit(
    file: Annotated[Path, "the run's ledger (.jsonl), or folder of a run of the library", "FILE"],
    *,
    yes: Annotated[bool, "permit it without asking, for use in programs"] = False,
) -> None:
    """Permit another attempt of a finished run on real patients.

    With noise from the operating system, a run is trained once. A job that would train it again stops, and prints why
    it was started, what can be done at no cost, and the total epsilon after another attempt. If results were only
    copied, so that their files have new times, run snakemake --touch instead. This command prints the total at the
    run's own delta, and asks. After the answer yes, it writes one permission into the run's ledger.

    Examples
    --------
    zetadp permit ledgers/hospital/decathlon-complex-federated-eps-8-seed-0.jsonl
    zetadp permit runs/mine --yes
    """
    from zetadp.account.attempts import read_ledger
    from zetadp.account.budget import cost_of_another
    from zetadp.account.ledger import Ledger
    from zetadp.account.offers import KEEP_RESULTS, offer

    file = RunFolder(file).live_ledger or file
    attempts = read_ledger(file)  # fails without a ledger, which `Ledger` would create
    print(offer(KEEP_RESULTS, "permit another attempt"))
    print(f"With another attempt, {cost_of_another(file, attempts)}.")
    if not (yes or _answer("Permit it? Answer yes or no: ") == "yes"):
        raise UserError(f"Expected the answer yes, so nothing was permitted in {file}. Programs say --yes.")
    with Ledger(file) as ledger:
        ledger.permit()
    print(f"Attempt {ledger.permitted} is permitted.")
    print("Start it as before. In the pipeline: snakemake --forcerun MODEL.safetensors, the path of the run's model.")


def _answer(question: str) -> str:
    """Return the user's answer to a question; empty if the program has no input."""
    try:
        return input(question).strip().casefold()
    except EOFError:
        return ""
