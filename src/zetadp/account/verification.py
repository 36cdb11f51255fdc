"""Verification of a finished run, which needs neither the training code nor data.

A finished run is sealed: one file holds the hash of every other. The seal detects accidental changes. Someone who
changes files on purpose can seal the run again, so verification recomputes the statement from the ledger, whose lines
are chained, and computes its epsilon with code that shares nothing with the accountant. Someone could rewrite the
whole chain, so a run alone proves nothing: something outside must vouch for the head of its ledger. That is the
register next to the live ledgers (`zetadp.account.book`), or a head that somebody noted elsewhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from zetadp.account.attempts import Attempt, made_model, read_ledger
from zetadp.account.book import Book
from zetadp.account.exposure import condition_of, distinct, over_runs, runs_of, seen_by
from zetadp.account.statement import Statement, last_statement, leading_epsilon
from zetadp.base.differences import differences
from zetadp.base.epsilon import LARGEST_EXPONENT, rounded_up
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import content_hash, read_json
from zetadp.base.validation import UserError, counted, shown

AGREE = 0.01
"""Two accountants may differ by this share, because each rounds up."""
OF_HOSPITALS = (
    "A federation leaves no such folder: check each hospital's ledger, or the server's copy of it, with --key."
)
"""What to check where hospitals trained together."""
_ROUNDING = 1e-6
"""Values computed on different processors differ by less than this."""
_OF_PLAN = ("run", "nodes", "delta", "cohort", "task", "partition", "cohort_unit", "threat")
"""What plan and ledger declare in the same words."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes
    ----------
    what
        The statement that was checked.
    fault
        Description of the fault; empty if there is none.
    """

    what: str
    fault: str = ""


def verify_run(folder: Path, ledgers: Path | None = None, head: str | None = None) -> list[Check]:
    """Make all checks of a finished run.

    Parameters
    ----------
    folder
        The run's folder.
    ledgers
        The cohort's folder of live ledgers, whose register vouches for the ledger.
    head
        A head of the ledger that was noted elsewhere, and vouches for the lines up to it. Without
        one of the two the ledger could be made up, and a check says so.

    Raises
    ------
    UserError
        If the folder holds no finished run.
    """
    if folder.is_file():
        read_ledger(folder)  # refuses a release of rows, and says what to give instead
    run = RunFolder(folder)
    if not run.ledger.is_file():
        raise UserError(
            f"Expected the folder of a finished run, found no {run.ledger.name} in {folder}. {OF_HOSPITALS}"
        )
    results = list(_as_sealed(run))
    checks: list[tuple[str, Callable[[RunFolder, Sequence[Attempt]], None]]] = [
        ("the model names a line of the ledger", _of_ledger),
        ("plan and ledger say the same", _as_planned),
        ("the statement follows from the ledger", _as_stated),
        ("another computation finds no larger epsilon", _as_computed_again),
    ]
    try:
        attempts = read_ledger(run.ledger)
        if not attempts:
            raise UserError("it records no training.")
        results.append(
            Check(f"the ledger's chain is unbroken, {counted(len(attempts[-1].events), 'release')} by its nodes")
        )
    except (UserError, ValueError, KeyError, TypeError) as error:
        return [*results, Check("the ledger's chain is unbroken", str(error))]
    results.insert(0, _identified(run, attempts))
    if not _known_to_both(attempts[-1]):
        del checks[-1]
    results += [checked(what, check, run, attempts) for what, check in checks]
    if ledgers is not None:
        results.append(checked(f"{ledgers} holds this ledger and all others", Book.read, ledgers, [run.ledger]))
    elif head is not None:
        fault = "" if head in attempts[-1].heads else f"{head} is not a head of it"
        results.append(Check("the ledger holds the head that was noted elsewhere", fault))
    else:
        fault = (
            "name the cohort's folder of ledgers, or a head that was noted elsewhere: a whole chain can be rewritten"
        )
        results.append(Check("something outside vouches for the ledger", fault))
    return results


def checked(what: str, check: Callable[..., object], *arguments: object) -> Check:
    """Return the result of a check, with the error that it raised as the fault."""
    try:
        check(*arguments)
    except (UserError, ValueError, KeyError, TypeError, AttributeError, OSError) as error:  # files may hold anything
        return Check(what, str(error) or type(error).__name__)
    return Check(what)


def unsealed(folder: Path) -> list[str]:
    """Return the names of the files of a run's folder that its seal does not name, for which nothing vouches."""
    seal = RunFolder(folder).seal
    try:
        names = set(read_json(seal)["files"])
    except (UserError, OSError, ValueError, KeyError, TypeError):
        names = set()
    return sorted(file.name for file in folder.iterdir() if file.is_file() and file.name not in names | {seal.name})


def _as_sealed(run: RunFolder) -> Iterator[Check]:
    try:
        files = read_json(run.seal)["files"]
        digests = {str(name): str(digest) for name, digest in files.items()}
    except (UserError, OSError, ValueError, KeyError, AttributeError):
        yield Check("the run is sealed", f"{run.seal} is missing or damaged")
        return
    for name in sorted({file.name for file in run.sealed} - digests.keys()):
        yield Check(f"{name} is sealed", f"{run.seal.name} does not name it")
    for name, digest in digests.items():
        what = f"{name} is as it was sealed"
        try:
            yield Check(what, "" if content_hash(run.path / name) == digest else "it was altered")
        except OSError:
            yield Check(what, "it is missing")


def _identified(run: RunFolder, attempts: Sequence[Attempt]) -> Check:
    """Return which run is checked, with epsilon, delta, unit and guarantee from its ledger."""
    try:
        name = shown(str(read_json(run.privacy)["name"]))
    except (UserError, OSError, KeyError):
        name = shown(run.path.resolve().name)
    try:
        stated = last_statement(attempts, name)
    except (UserError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Check(f"this is the run {name}", str(error))
    what = (
        f"this is the run {name}: epsilon {rounded_up(leading_epsilon(stated))} at delta {stated['delta']:g} for each "
        f"{stated['unit']}{condition_of(runs_of(run.path, attempts))}, guarantee: {stated['guarantee']}"
    )
    return checked(what, _as_named, run, attempts)


def _as_named(run: RunFolder, attempts: Sequence[Attempt]) -> None:
    """Refuse a folder of the pipeline whose path names another run than the ledger: a copied run.

    Other folders may have any name.
    """
    if (name := run.run_name) is None:
        return
    declaration = attempts[-1].declaration
    declared = {**declaration.run, "epsilon": str(declaration.target)}
    for key, part in name.to_json().items():
        if part != declared[key]:
            raise UserError(f"its folder says {key} {part}, and its ledger says {declared[key]}")


def _of_ledger(run: RunFolder, attempts: Sequence[Attempt]) -> None:
    if not made_model(attempts[-1:], run.model):
        raise UserError("the ledger is another one, or lines are missing at its end")


def _as_planned(run: RunFolder, attempts: Sequence[Attempt]) -> None:
    plan, declaration = read_json(run.plan), attempts[-1].declaration
    training = {key: value for key, value in plan["training"].items() if key in declaration.training}
    pairs = {key: (plan[key], getattr(declaration, key)) for key in _OF_PLAN}
    pairs |= {"training": (training, declaration.training), "noise": (plan["training"]["noise"], declaration.noise)}
    for name, (planned, recorded) in pairs.items():
        if planned != recorded:
            raise UserError(f"{name} differs: {planned} in plan.json, {recorded} in the ledger")


def _as_stated(run: RunFolder, attempts: Sequence[Attempt]) -> None:
    stated = read_json(run.privacy)
    again = last_statement(attempts, stated["name"])
    for change in differences(json.loads(json.dumps(again)), stated):
        if not _is_rounding(change.before, change.now):
            raise UserError(f"{change.key} in privacy.json is not what the ledger gives")
    if run.text.read_text(encoding="utf-8") != Statement(stated).text:
        raise UserError("privacy.txt does not say what privacy.json says")


def _is_rounding(*values: object) -> bool:
    """Return whether two values are numbers that differ no more than computations on two processors do."""
    numbers = [value for value in values if isinstance(value, float | int)]
    floating = any(isinstance(value, float) for value in numbers)
    return floating and len(numbers) == len(values) and math.isclose(*numbers, rel_tol=_ROUNDING, abs_tol=_ROUNDING)


def _known_to_both(attempt: Attempt) -> bool:
    """Return whether `recomputed_epsilon` knows all releases: noisy sums, and one unit of a person."""
    return all(event.kind.gaussian and event.kind.private and event.kind.units == 1 for event in attempt.events)


def _as_computed_again(run: RunFolder, attempts: Sequence[Attempt]) -> None:
    """Compute what a server sees of each node without the project's accountant, and compare.

    Of masked sums it sees the sums, and if it could undo the masks, every message. All attempts together cost no more
    than the statement says, which may sum them by an odometer.
    """
    stated, runs = read_json(run.privacy), runs_of(run.path, attempts)
    happened = runs[-1]
    if happened.images:
        return  # the epsilon of the statement is per image; `_as_stated` computes it again
    claims = [(stated["epsilon"], seen_by(happened, "server"))]
    if happened.sums is not None:
        claims += [(stated["threat"]["epsilon_single_messages"], seen_by(happened, "messages"))]
    if len(runs) > 1 and all(map(_known_to_both, attempts)) and not any(attempt.images for attempt in runs):
        claims += [(stated["earlier_attempts"]["epsilon_together"], over_runs(runs, happened.delta))]
    for claim, seen in claims:
        for exposure in distinct((seen or {}).values()):
            releases = [(kind.sampling_probability, kind.noise_multiplier, count) for kind, count in exposure.items()]
            recomputed = recomputed_epsilon(releases, happened.delta)
            if not recomputed <= float(claim) * (1 + AGREE):
                raise UserError(f"{recomputed:.4g} for some node, where the statement says {float(claim):.4g}")


def recomputed_epsilon(releases: Sequence[tuple[float, float, int]], delta: float) -> float:
    r"""Return epsilon of sampled Gaussian releases, for checks only: it is close to the truth and not a bound.

    The loss of one release is :math:`\log(1 - q + q e^{(2 x - 1) / 2 \sigma^2})`, where x is normal around 0, or around
    1 if the unit was drawn. Its distribution is put on a grid. That of all losses together is the product of the
    discrete Fourier transforms, each to the power of its number of releases (Koskela et al. 2020, arXiv:1906.03049).
    The larger value of a unit added and a unit removed counts. The code uses nothing but NumPy and SciPy.

    Parameters
    ----------
    releases
        Sampling probability, noise multiplier and number of releases of each kind.
    delta
        The delta at which epsilon is asked for.
    """
    return max(_epsilon_one_way(releases, delta, added=added) for added in (True, False))


def _epsilon_one_way(releases: Sequence[tuple[float, float, int]], delta: float, *, added: bool) -> float:
    points = 1 << 20
    spread = sum(
        count * min(probability**2 * np.expm1(min(noise**-2, LARGEST_EXPONENT)), probability / noise**2)
        for probability, noise, count in releases
    )
    width = max(40.0, 30 * math.sqrt(spread) + 2 * spread)
    interval = 2 * width / points
    edges = (np.arange(points + 1) - points // 2 - 0.5) * interval
    total = np.ones(points // 2 + 1, dtype=complex)
    for probability, noise, count in releases:
        # The loss grows with x, so its distribution function follows from that of x. Below log(1 - q) there is no loss.
        with np.errstate(divide="ignore", over="ignore"):
            grown = np.log(np.maximum(np.expm1(edges if added else -edges) / probability + 1, 0))
        x = noise**2 * grown + 0.5
        taken, left = ndtr((x - 1) / noise), ndtr(x / noise)
        below = probability * taken + (1 - probability) * left if added else 1 - left
        weights = np.diff(below)
        weights[0] += below[0]
        total *= np.fft.rfft(np.roll(weights, -(points // 2))) ** count
    masses = np.maximum(np.fft.irfft(total, points)[: points // 2], 0)
    # delta(epsilon) = sum over losses above epsilon of (1 - exp(epsilon - loss)) p(loss), which falls with epsilon.
    losses = np.minimum(np.arange(points // 2) * interval, LARGEST_EXPONENT)
    above, weighted = (np.cumsum(values[::-1])[::-1] for values in (masses, masses * np.exp(-losses)))
    enough = above - np.exp(losses) * weighted <= delta
    return float(losses[int(np.argmax(enough))]) if enough.any() else math.inf
