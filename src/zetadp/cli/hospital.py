"""The commands of ``zetadp federation`` for a hospital: show, key, approve, node."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from zetadp.base.validation import UserError
from zetadp.cli.helping import command, log_to_terminal, option, positive_number, tell, written

PORT = 9443
"""Default port of a server."""


@command(
    "federation show",
    examples=("federation show plan.json", "federation show plan.json --node node-03"),
    options=[
        option("plan", type=Path, help="the plan (plan.json)"),
        option("--node", help="name of one hospital's node (default: all)"),
        option("--roster", type=Path, help="the roster (roster.json), where the plan has masked sums"),
    ],
)
def show(given: argparse.Namespace) -> None:
    """Print what a plan asks of a hospital, and its cost in privacy.

    Print a plan (plan.json) in plain words: what is trained, what leaves each hospital, what never does, and what it
    costs a patient. With --roster, check the roster and print its hash too.
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.flower.approval import invitation
    from zetadp.federation.masks import Roster

    plan = Plan.read(given.plan)
    print(invitation(plan, given.node, None if given.roster is None else Roster.read(given.roster, plan)))


@command(
    "federation key",
    examples=("federation key node-03.pub.pem node-03.key", "federation key keys/north.pub.pem keys/north.key"),
    options=[
        option("public", type=Path, help="file for the public key, which goes to the server"),
        option("private", type=Path, help="file for the private key, which never leaves the hospital"),
    ],
)
def key(given: argparse.Namespace) -> None:
    """Make the key pair of one node, at that node.

    Make the key pair of a node: a public key (.pub.pem) for the server, and a private key (.key) in OpenSSH's format,
    which never leaves the hospital.
    """
    from zetadp.federation.flower.certificates import make_node_key

    for path in (given.public, given.private):
        if path.exists():
            raise UserError(f"Expected {path} to be absent, found a file. A key in use must not be lost: name another.")
    with written():
        make_node_key(given.public, given.private)
    print(f"Send {given.public} to the server. Keep {given.private} here.")


@command(
    "federation member",
    examples=("federation member plan.json node-03 --key node-03.key",),
    options=[
        option("plan", type=Path, help="the plan (plan.json), with masked sums"),
        option("node", help="name of the hospital's node"),
        option("--key", type=Path, required=True, help="the node's private key (.key)"),
        option(
            "--output", type=Path, default=Path(), metavar="FOLDER", help="folder for the member file (%(default)s)"
        ),
    ],
)
def member(given: argparse.Namespace) -> None:
    """Make a hospital's agreement key for one plan, and the file that states it.

    Make the agreement key of a node for a plan (plan.json) with masked sums. The private key lies beside the node's
    signing key (.key) and never leaves the hospital. The member file (NAME.member.json) states the public key, signed
    with the signing key. It goes to the coordinator, who makes the roster of all members.
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.flower.membership import agreement_file, make_member

    plan = Plan.read(given.plan)
    with written():
        path = make_member(plan, given.node, given.key, given.output)
    print(f"Send {path} to the server. Keep {agreement_file(given.key, plan)} here, and delete it after the training.")


@command(
    "federation approve",
    examples=(
        "federation approve node.yaml --key node-03.key",
        "federation approve node.yaml --key node-03.key --who 'A. Physician' --hash afd91ab78a7b",
    ),
    options=[
        option("settings", type=Path, help="settings of the hospital (.yaml)"),
        option("--key", type=Path, required=True, help="the node's private key (.key)"),
        option("--who", help="name of the person who approves"),
        option("--hash", help="the first twelve digits of the plan's hash, or more"),
        option("--roster-hash", help="the same of the roster's hash, where the plan has masked sums"),
    ],
)
def approve(given: argparse.Namespace) -> None:
    """Approve a plan at a hospital, so that its node can start.

    Approve the plan (plan.json) that a hospital's settings (node.yaml) name. Without --hash, print the plan and approve
    nothing. With --hash, sign the plan and the number of permitted attempts with the node's private key (.key). With
    masked sums, the roster is signed too, so its hash is needed. The node starts only with this approval.
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.flower import approval
    from zetadp.federation.flower.approval import check_terms, invitation
    from zetadp.federation.flower.certificates import read_node_key
    from zetadp.federation.flower.membership import SHORTEST, checked_roster
    from zetadp.federation.flower.settings import HospitalSettings, check_cap

    settings = HospitalSettings.read(given.settings)
    read_node_key(given.key)
    plan = Plan.read(settings.plan)
    roster, _ = checked_roster(settings.roster, plan, settings.name, given.key)
    check_terms(settings, plan)
    check_cap(settings, plan)
    if (given.hash is None) != (given.who is None):
        raise UserError("Expected --who and --hash together, found one of them. Nothing is approved.")
    if given.hash is None:
        also = "" if roster is None else f" --roster-hash {roster.digest[:SHORTEST]}"
        print(
            f"{invitation(plan, settings.name, roster)}\n\nThe settings permit {settings.attempts} attempt(s).\n"
            "Nothing is approved yet. If you agree to all of this, run:\n"
            f"  zetadp federation approve {given.settings} --key {given.key} --who 'YOUR NAME' "
            f"--hash {plan.digest[:SHORTEST]}{also}"
        )
        return
    with written():
        path = approval.approve(settings, given.key, given.who, given.hash, given.roster_hash)
    print(f"Approved by {given.who}: {path}. The node may start.")


@command(
    "federation node",
    examples=(
        "federation node node.yaml --server server.example:9443 --authority authority.pem --key node-03.key",
        "federation node node.yaml --server 192.0.2.7:9443 --authority authority.pem --key node-03.key "
        "--idle-seconds 5",
    ),
    options=[
        option("settings", type=Path, help="settings of the hospital (YAML)"),
        option("--server", required=True, metavar="HOST:PORT", help="where the server listens"),
        option("--authority", type=Path, required=True, help="certificate of the authority (.pem)"),
        option("--key", type=Path, required=True, help="the node's private key (.key)"),
        option(
            "--idle-seconds",
            type=positive_number,
            default=1.0,
            help="seconds between two requests for work (%(default)s)",
        ),
    ],
)
def node(given: argparse.Namespace) -> None:
    """Run a hospital's node until it is stopped.

    Run a hospital's node with the hospital's settings (node.yaml), until it is stopped. The plan must have been
    approved. This needs the certificate (.pem) of the authority that signed the server's certificate, and the node's
    private key (.key). What happens is printed, for the log of a service manager.
    """
    from zetadp.base.device import pick_device
    from zetadp.core.plan import Plan
    from zetadp.federation.flower.approval import check_approval, check_terms
    from zetadp.federation.flower.certificates import checked_server, read_certificate, read_node_key
    from zetadp.federation.flower.membership import checked_roster
    from zetadp.federation.flower.processes import SILENT, check_flower, folder_in_use
    from zetadp.federation.flower.settings import HospitalSettings, check_cap

    check_flower()
    settings = HospitalSettings.read(given.settings)
    checked_server(given.server)
    plan = Plan.read(settings.plan)
    promise = check_terms(settings, plan)
    check_cap(settings, plan)
    pick_device(settings.device)
    read_certificate(given.authority)
    read_node_key(given.key)
    roster, _ = checked_roster(settings.roster, plan, settings.name, given.key)
    approved = check_approval(settings, plan, given.key, roster)
    with folder_in_use(settings.state.resolve(), f"state in {given.settings}"):
        tell(f"{promise}; {approved}\n{settings.name} is starting.")
        os.environ.update(SILENT)
        log_to_terminal(f"{settings.name}: %(message)s")
        from zetadp.federation.flower.node import run_until_stopped

        run_until_stopped(
            settings=given.settings,
            server=given.server,
            authority=given.authority,
            key=given.key,
            idle_seconds=given.idle_seconds,
        )
