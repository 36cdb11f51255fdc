"""Files by which hospitals know each other's keys for masked sums: agreement keys, member files, the roster.

A hospital makes its agreement key for one plan, since a key that is used for several and stolen later would open the
recorded messages of all of them. Its signing key stays the same for all plans.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from zetadp.base.storage import write_json
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.federation.flower.certificates import Credentials, make_agreement_key, read_agreement_key, read_node_key
from zetadp.federation.masks import Member, Roster

SHORTEST = 12
"""Fewest digits of a hash that name a plan or a roster, also in names of files."""


def agreement_file(key: Path, plan: Plan) -> Path:
    """Return the file of a node's agreement key for a plan, which lies beside its signing key."""
    return key.with_name(f"{key.stem}.{plan.digest[:SHORTEST]}.agreement.key")


def make_member(plan: Plan, name: str, key: Path, folder: Path) -> Path:
    """Make a node's agreement key for a plan beside its signing key, and return the member file for the coordinator.

    Parameters
    ----------
    plan, name
        The plan, and the node's name in it.
    key
        The node's private signing key.
    folder
        Folder for the member file.

    Raises
    ------
    UserError
        If the plan has no masked sums or no such node, or the agreement key exists already.
    """
    if not plan.masked:
        raise UserError(
            f"Expected a plan with masked sums, found {plan.label} with threat {plan.threat}: nothing to do."
        )
    plan.place(name)
    signing, private = read_node_key(key), agreement_file(key, plan)
    if private.exists():
        raise UserError(f"Expected {private} to be absent, found a file. A key in use must not be lost.")
    make_agreement_key(private)
    path = folder / f"{name}.member.json"
    write_json(path, asdict(Member.made(plan, name, read_agreement_key(private), signing)))
    return path


def make_roster(plan: Plan, credentials: Credentials) -> Path | None:
    """Make agreement keys and the roster of nodes whose keys all lie in one folder: for trials and on one machine.

    Returns
    -------
    The roster's file; None where the plan has no masked sums.
    """
    if not plan.masked:
        return None
    members = [make_member(plan, node.name, credentials.node(node.name)[1], credentials.folder) for node in plan.nodes]
    path = credentials.folder / "roster.json"
    Roster.made(plan, members).write(path)
    return path


def roster_of(path: Path | None, plan: Plan) -> Roster | None:
    """Return the roster that a site's settings name; None where the plan needs none.

    Raises
    ------
    UserError
        If the settings name one and the plan has no masked sums, or the other way around, or if the file is wrong.
    """
    if (path is not None) != plan.masked:
        needed = "the file of the roster as roster" if plan.masked else "no roster"
        raise UserError(f"Expected {needed} in the settings of a site of {plan.label}, found {path or 'none'}.")
    return None if path is None else Roster.read(path, plan)


def checked_roster(
    path: Path | None, plan: Plan, name: str, key: Path
) -> tuple[Roster | None, ec.EllipticCurvePrivateKey | None]:
    """Return the roster that a hospital's settings name, which states the hospital's own keys, and its agreement key.

    Parameters
    ----------
    path, plan
        As in `roster_of`.
    name, key
        The node, and its private signing key.
    """
    roster = roster_of(path, plan)
    if roster is None:
        return None, None
    agreement = read_agreement_key(agreement_file(key, plan))
    roster.check_own(name, agreement, read_node_key(key))
    return roster, agreement
