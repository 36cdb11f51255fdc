"""Verification of a finished run, which needs neither the training code nor data.

A finished run is sealed: one file holds the hash of every other. The seal detects accidental changes. Someone who
changes files on purpose can seal the run again, so verification recomputes the statement from the ledger, whose lines
are chained, and checks its epsilon with another accountant. A run alone cannot show whether its ledger is complete; the
register next to the live ledgers can (`zetadp.privacy.account`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zetadp.base.epsilon import epsilon_value
from zetadp.base.storage import content_hash, read_json, write_json
from zetadp.base.validation import UserError
from zetadp.privacy import accounting
from zetadp.privacy.account import cohort_runs
from zetadp.privacy.exposure import run_of
from zetadp.privacy.ledger import Attempt, read_ledger
from zetadp.privacy.statement import last_statement
from zetadp.privacy.wording import plain_text

SEAL = "seal.json"
AGREE = 0.01
"""Two accountants may differ by this share, because each rounds up."""
_INTERVAL = 1e-3
"""Interval of the grid of privacy losses. It is coarser than the default, and eight times as fast."""
_ROUNDING = 1e-6
"""Figures computed on different processors differ by less than this."""
_HEADER_BYTES = 8
_OF_PLAN = ("run", "nodes", "delta", "cohort", "task", "partition")
"""Keys with equal values in the plan and in the ledger's header."""


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


def seal(path: Path, files: Iterable[Path]) -> None:
    """Write the hashes of a finished run's files, which lie next to the seal."""
    write_json(path, {"format": 1, "files": {file.name: content_hash(file) for file in files}})


def verify_run(folder: Path, ledgers: Path | None = None) -> list[Check]:
    """Make all checks of a finished run.

    Parameters
    ----------
    folder
        The run's folder.
    ledgers
        The cohort's folder of live ledgers, if available.

    Raises
    ------
    UserError
        If the folder holds no finished run.
    """
    if not (folder / "ledger.jsonl").is_file():
        raise UserError(f"Expected the folder of a finished run, found no ledger.jsonl in {folder}.")
    found = list(_as_sealed(folder))
    checks: list[tuple[str, Callable[[Path, Sequence[Attempt]], None]]] = [
        ("the model names a line of the ledger", _of_ledger),
        ("plan and ledger say the same", _as_planned),
        ("the statement follows from the ledger", _as_stated),
    ]
    try:
        attempts = read_ledger(folder / "ledger.jsonl")
        if not attempts:
            raise UserError("it records no training.")
        found.append(Check(f"the ledger's chain is unbroken, {len(attempts[-1].events)} releases by its nodes"))
    except (UserError, ValueError, KeyError, TypeError) as error:
        return [*found, Check("the ledger's chain is unbroken", str(error))]
    if _others_account(attempts[-1]):
        checks.append(("dp-accounting finds no larger epsilon", _as_others_account))
    found += [checked(what, check, folder, attempts) for what, check in checks]
    if ledgers is not None:
        sealed = folder / "ledger.jsonl"
        found.append(checked(f"{ledgers} holds this ledger and all others", lambda *_: cohort_runs(ledgers, [sealed])))
    return found


def checked(what: str, check: Callable[..., object], *given: object) -> Check:
    """Return the result of a check, with the error that it raised as the fault."""
    try:
        check(*given)
    except (UserError, ValueError, KeyError, TypeError, OSError) as error:  # files may hold anything
        return Check(what, str(error) or type(error).__name__)
    return Check(what)


def _as_sealed(folder: Path) -> Iterator[Check]:
    try:
        files = read_json(folder / SEAL)["files"]
        wanted = {str(name): str(digest) for name, digest in files.items()}
    except (UserError, OSError, ValueError, KeyError, AttributeError):
        yield Check("the run is sealed", f"{folder / SEAL} is missing or damaged")
        return
    for name, digest in wanted.items():
        what = f"{name} is as it was sealed"
        try:
            yield Check(what, "" if content_hash(folder / name) == digest else "it was altered")
        except OSError:
            yield Check(what, "it is missing")


def _of_ledger(folder: Path, attempts: Sequence[Attempt]) -> None:
    with (folder / "model.safetensors").open("rb") as file:
        size = int.from_bytes(file.read(_HEADER_BYTES), "little")
        content = json.loads(json.loads(file.read(size))["__metadata__"]["content"])
    if content["ledger_head"] not in attempts[-1].heads:
        raise UserError("the ledger is another one, or lines are missing at its end")


def _as_planned(folder: Path, attempts: Sequence[Attempt]) -> None:
    plan, header = read_json(folder / "plan.json"), attempts[-1].header
    training = {key: value for key, value in plan["training"].items() if key in header["training"]}
    pairs = {key: (plan[key], header[key]) for key in _OF_PLAN if key in header}
    pairs |= {"training": (training, header["training"]), "noise": (plan["training"]["noise"], header["noise"])}
    for name, (planned, recorded) in pairs.items():
        if planned != recorded:
            raise UserError(f"{name} differs: {planned} in plan.json, {recorded} in the ledger")


def _as_stated(folder: Path, attempts: Sequence[Attempt]) -> None:
    stated = read_json(folder / "privacy.json")
    epsilon = str(attempts[-1].header["run"]["epsilon"])
    # A statement per image also names the unit that the images belong to.
    unit = (stated.get("of_all_images") or stated)["unit"]
    again = last_statement(attempts, name=stated["name"], epsilon=epsilon, delta=stated["delta"], unit=unit)
    differing = list(_differences(json.loads(json.dumps(again)), stated))
    if differing:
        raise UserError(f"{differing[0]} in privacy.json is not what the ledger gives")
    if (folder / "privacy.txt").read_text(encoding="utf-8") != plain_text(stated):
        raise UserError("privacy.txt does not say what privacy.json says")


def _differences(one: Any, other: Any, place: str = "") -> Iterator[str]:  # noqa: ANN401  (JSON is untyped)
    """Yield the places where two JSON values differ by more than rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _differences(one.get(key), other.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(*pair, f"{place}[{number}]")
    elif isinstance(one, float) and isinstance(other, float | int):
        if not math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            yield place
    elif one != other:
        yield place


def _others_account(attempt: Attempt) -> bool:
    """Return whether dp-accounting can check epsilon: it knows Gaussian noise, and here one unit of a person."""
    gaussian = all(event.kind.gaussian and event.kind.private for event in attempt.events)
    return gaussian and attempt.header.get("unit") != "image"


def _as_others_account(folder: Path, attempts: Sequence[Attempt]) -> None:
    """Let dp-accounting itself compute what each node's messages cost, and compare."""
    from dp_accounting.pld import PLDAccountant

    stated = read_json(folder / "privacy.json")
    happened = run_of(stated["name"], attempts[-1])
    single = (stated.get("threat") or {}).get("epsilon_single_messages")
    most = epsilon_value(str(single if single is not None else stated["epsilon"]))
    for exposure in {accounting.ordered(node.mechanisms) for node in happened.nodes.values()}:
        accountant = PLDAccountant(value_discretization_interval=_INTERVAL)
        accountant.compose(accounting.as_dp_event(dict(exposure)))
        found = accountant.get_epsilon(stated["delta"])
        if not found <= most * (1 + AGREE):
            raise UserError(f"{found:.4g} for some node, where the statement says {most:.4g}")
