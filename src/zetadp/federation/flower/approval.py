"""What a hospital reads before it takes part, and its signed approval, without which its node does not start.

The signature covers the hash of the plan, with masked sums that of the roster, and the number of permitted attempts,
which together fix what a patient can lose. So a plan, a roster or a number that was changed after somebody approved it
is refused, whether by mistake or by anybody who can write the hospital's files and cannot read its key. It is no
protection against somebody who has the key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import make_folder, read_json, write_json
from zetadp.base.validation import UserError, shown
from zetadp.core.plan import NodeConstants, Plan
from zetadp.core.promise import OWN_DELTA, Promise, check_promise, promise_of
from zetadp.core.settings import GAUSSIAN, NO_EXACT_DIRECTION
from zetadp.federation.flower.certificates import check_signature, read_node_key, signature
from zetadp.federation.flower.membership import SHORTEST, checked_roster
from zetadp.federation.flower.settings import HospitalSettings
from zetadp.federation.masks import Roster
from zetadp.nn.settings import DESCENT, MIXED_ROWS
from zetadp.privacy import accounting
from zetadp.privacy.risk import Risk, percent_up

KEYS = {"node", "plan", "roster", "attempts", "who", "date", "signature"}
TEN = 10
"""Number of candidates in the sentence about the chance of a right guess."""


def invitation(plan: Plan, node: str | None = None, roster: Roster | None = None) -> str:
    """Return a plan in plain words.

    Parameters
    ----------
    plan
        The plan, with its noise.
    node
        The hospital whose part is told; None for all.
    roster
        The roster of masked sums; None where there is none, or none yet.

    Raises
    ------
    UserError
        If the plan has no such node.
    """
    known = {each.name: each for each in plan.nodes}
    if node is not None and node not in known:
        raise UserError(f"Expected a node of the plan ({', '.join(known)}), found {node}.")
    chosen = list(known.values()) if node is None else [known[node]]
    lines = [*_training(plan, roster), *(line for each in chosen for line in _part(plan, each))]
    return "\n".join(shown(line) for line in lines)


def _training(plan: Plan, roster: Roster | None) -> Iterator[str]:
    net, how = plan.network, plan.training
    yield f"Plan {plan.label} of cohort {plan.cohort or '(no name)'}"
    yield f"  hash:     {plan.digest}"
    yield f"  task:     {plan.task.get('name', 'none')}"
    trained = "" if net.trained == "all" else f", of which is trained: {net.trained}"
    start = "from a public network" if net.start == "public" else "from random weights"
    yield f"  network:  {net.family} on {net.domain}, {start}{trained}"
    yield f"  rounds:   {how.rounds}, with {len(plan.nodes)} nodes"
    yield f"  noise:    {_source(how.noise)}"
    if plan.sums is not None and plan.masked:
        relied = plan.sums.shares(len(plan.nodes))
        least, colluding = plan.sums.least_members(len(plan.nodes)), plan.sums.colluding
        yield f"  sums:     masks hide every message, so the server sees nothing but sums of at least {least} hospitals"
        yield f"            if at most {colluding} collude with the server, {relied} others are relied on for noise"
        yield f"  tries:    {plan.tries}, of which {plan.sums.spare} spare"
        yield f"  roster:   {'made when all hospitals have sent their keys' if roster is None else roster.digest}"


def _source(noise: str) -> str:
    return "from the operating system" if noise == "os" else "from a seed, which protects nobody: for simulations only"


def _part(plan: Plan, node: NodeConstants) -> Iterator[str]:
    # The reader of this page judges as the node does, unless its settings say otherwise.
    promise = promise_of(plan, node.name, delta=min(plan.delta, OWN_DELTA))
    yield ""
    yield f"{node.name}"
    yield f"  takes part with {node.population} {plan.unit}s, no more and no fewer"
    if node.expected == node.population:
        yield f"  all {plan.unit}s enter every round"
    else:
        yield f"  about {node.expected:g} of them enter a round; the node draws them and tells nobody who they were"
    yield f"  sends {_what(plan)}, and lines of its ledger, which hold public numbers alone"
    yield "  never sends images, features, losses, or how many were drawn"
    yield f"  costs:    {promise}"
    if math.isfinite(promise.person):
        exposed = accounting.grouped(plan.mechanisms(node.name), plan.units_of_a_person or 1)
        share = Risk(plan.label, (), (exposed,), "holds").right_guesses(TEN, promise.delta)
        yield (
            f"            Someone who has the data of {TEN} candidates, one of whom took part, names the right one at "
            f"most {percent_up(share)} of the time; {100 / TEN:g} % is guessing."
        )
    yield "            A training that is begun again costs as much again; `attempts` in node.yaml sets how often."
    if math.isfinite(promise.person):
        yield f"  agree by `most_epsilon: {rounded_up(promise.person)}` in node.yaml: the node refuses what costs more"


def _what(plan: Plan) -> str:
    how = plan.training
    if how.estimator == MIXED_ROWS:
        return f"{how.mixing.rows if how.mixing else 0} rows, each a noisy mean of a few {plan.unit}s, once"
    if how.estimator == DESCENT:
        return "in each round one sum of clipped gradients with noise"
    return "once one sum of clipped statistics with noise"


def check_terms(settings: HospitalSettings, plan: Plan) -> Promise:
    """Return what a plan costs one patient of a hospital; refuse a plan that the hospital's settings do not allow.

    The hospital judges at its own delta.

    Parameters
    ----------
    settings
        The hospital's settings.
    plan
        The hospital's copy of the plan.

    Raises
    ------
    UserError
        If the plan protects nobody, or an image instead of a patient, where patients are real; or if it costs more than
        its name or the settings say.
    """
    name, how = settings.name, plan.training
    sigma = plan.nodes[plan.place(name)].noise_multiplier
    if how.release != GAUSSIAN:
        raise UserError(
            f"Expected a plan with release {GAUSSIAN} at {name}, found {how.release}: {NO_EXACT_DIRECTION}. It is "
            "there for simulations without a federation."
        )
    simulated = "Where no patient is real, set simulation in the node's own settings."
    if not settings.simulation and not (how.noise == "os" and sigma > 0):
        raise UserError(
            f"Expected a plan with noise from the operating system at {name}, found noise: {how.noise} with multiplier "
            f"{sigma}. It would protect nobody. {simulated}"
        )
    if not settings.simulation and plan.unit == "image":
        raise UserError(
            f"Expected a plan that protects a patient at {name}, found unit image, which protects one of a patient's "
            f"{plan.units_of_a_person} images. {simulated}"
        )
    limit, own = settings.most_epsilon, settings.delta
    return check_promise(plan, name, most_epsilon=limit, attempts=settings.attempts, delta=own)


def approval_file(settings: HospitalSettings, plan: Plan) -> Path:
    """Return where the approval of a plan is kept: in the state folder, one file for each plan."""
    return settings.state / "approvals" / f"{plan.digest[:16]}.json"


def approve(
    settings: HospitalSettings, key: Path, who: str, digits: str | None = None, roster_digits: str | None = None
) -> Path:
    """Approve the hospital's copy of the plan, and return the file of the approval.

    Parameters
    ----------
    settings
        The hospital's settings, which name the plan and the permitted attempts.
    key
        The node's private key.
    who
        Who approves.
    digits
        The first digits of the hash of the plan that was read, at least twelve; None where plan and approval come from
        the same program.
    roster_digits
        The same of the roster, where the plan has masked sums. Only its hash shows that no key was exchanged.

    Raises
    ------
    UserError
        If plan or roster has another hash, if the plan does not know the hospital, or the roster has other keys of it.
    """
    plan = Plan.read(settings.plan)
    plan.place(settings.name)
    roster, _ = checked_roster(settings.roster, plan, settings.name, key)
    if digits is not None:
        _check_digits(settings.plan, plan.digest, digits)
        if settings.roster is not None and roster is not None:
            _check_digits(settings.roster, roster.digest, roster_digits or "none")
    content = {
        "node": settings.name,
        "plan": plan.digest,
        "roster": None if roster is None else roster.digest,
        "attempts": settings.attempts,
        "who": who,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    path = approval_file(settings, plan)
    make_folder(path.parent)
    write_json(path, content | {"signature": signature(content, read_node_key(key))})
    return path


def _check_digits(path: Path, digest: str, digits: str) -> None:
    if not (len(digits) >= SHORTEST and digest.startswith(digits.lower())):
        raise UserError(
            f"Expected at least the first {SHORTEST} digits of the hash of {path}, which is {digest}, found {digits}. "
            "Read it again before you approve it."
        )


def check_approval(settings: HospitalSettings, plan: Plan, key: Path, roster: Roster | None = None) -> str:
    """Return who approved a plan and a roster, in words, and when.

    Raises
    ------
    UserError
        If nobody approved this very plan and roster with this key, for as many attempts as the settings now permit.
    """
    plan.place(settings.name)
    path = approval_file(settings, plan)
    remedy = f"Read the plan and approve it: zetadp federation approve NODE.yaml --key {key.name}"
    if not path.exists():
        raise UserError(f"Nobody has approved the plan {settings.plan} (hash {plan.digest[:16]}). {remedy}")
    content = read_json(path)
    if content.keys() != KEYS:
        raise UserError(f"Expected {path} to be an approval, found something else. {remedy}")
    try:
        check_signature(content, read_node_key(key).public_key())
    except UserError as error:
        raise UserError(f"The approval {path} is not valid for {key}: {error}. {remedy}") from error
    if (content["node"], content["plan"]) != (settings.name, plan.digest):
        raise UserError(f"The approval {path} is for another plan or another node. {remedy}")
    if content["roster"] != (None if roster is None else roster.digest):
        raise UserError(f"The approval {path} is for another roster than {settings.roster}. {remedy}")
    if settings.attempts > content["attempts"]:
        raise UserError(
            f"The approval {path} permits {content['attempts']} attempt(s), and the settings now say "
            f"{settings.attempts}, which costs patients more. {remedy}"
        )
    return shown(f"approved by {content['who']} on {content['date']}")
