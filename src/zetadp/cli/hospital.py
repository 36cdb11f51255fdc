"""The commands of ``zetadp federation`` for a hospital: show, key, approve, node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from zetadp.base.constraints import Positive
from zetadp.base.validation import UserError
from zetadp.cli.arguments import log_to_terminal, tell

PORT = 9443
"""Default port of a server."""
OwnSettings = Annotated[Path, "settings of the hospital (YAML)"]
PrivateKey = Annotated[Path, "the node's private key (.key)"]


def show(
    plan: Annotated[Path, "the plan (plan.json)"],
    *,
    node: Annotated[str | None, "name of one hospital's node (default: all)"] = None,
    roster: Annotated[Path | None, "the roster (roster.json), where the plan has masked sums"] = None,
) -> None:
    """Print what a plan asks of a hospital, and its cost in privacy.

    In plain words: what is trained, what leaves each hospital, what never does, and what it costs a patient. With
    --roster, check the roster and print its hash too.

    Examples
    --------
    zetadp federation show plan.json
    zetadp federation show plan.json --node node-03
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.flower.invitation import invitation
    from zetadp.federation.masks import Roster

    agreed = Plan.read(plan)
    print(invitation(agreed, node, None if roster is None else Roster.read(roster, agreed)))


def key(
    public: Annotated[Path, "file for the public key, which goes to the server"],
    private: Annotated[Path, "file for the private key, which never leaves the hospital"],
) -> None:
    """Make the key pair of one node, at that node.

    The public key (.pub.pem) is for the server. The private key (.key), in OpenSSH's format, never leaves the hospital.

    Examples
    --------
    zetadp federation key node-03.pub.pem node-03.key
    zetadp federation key keys/north.pub.pem keys/north.key
    """
    from zetadp.federation.flower.certificates import make_node_key

    for path in (public, private):
        if path.exists():
            raise UserError(f"Expected {path} to be absent, found a file. A key in use must not be lost: name another.")
    make_node_key(public, private)
    print(f"Send {public} to the server. Keep {private} here.")


def member(
    plan: Annotated[Path, "the plan (plan.json), with masked sums"],
    node: Annotated[str, "name of the hospital's node"],
    *,
    key: PrivateKey,
    output: Annotated[Path, "folder for the member file", "FOLDER"] = Path(),
) -> None:
    """Make a hospital's agreement key for one plan, and the file that states it.

    A plan (plan.json) with masked sums needs it. The private key lies beside the node's signing key (.key) and never
    leaves the hospital. The member file (NAME.member.json) states the public key, signed with the signing key. It goes
    to the coordinator, who makes the roster of all members.

    Examples
    --------
    zetadp federation member plan.json node-03 --key node-03.key
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.flower.participant import agreement_file, make_member

    agreed = Plan.read(plan)
    path = make_member(agreed, node, key, output)
    print(f"Send {path} to the server. Keep {agreement_file(key, agreed)} here, and delete it after the training.")


def approve(
    settings: OwnSettings,
    *,
    key: PrivateKey,
    who: Annotated[str | None, "name of the person who approves"] = None,
    hash_: Annotated[str | None, "the first twelve digits of the plan's hash, or more"] = None,
    roster_hash: Annotated[str | None, "the same of the roster's hash, where the plan has masked sums"] = None,
) -> None:
    """Approve a plan at a hospital, so that its node can start.

    The hospital's settings (node.yaml) name the plan (plan.json). Without --hash, print it and approve nothing. With
    --hash, sign the plan and the number of permitted attempts with the node's private key (.key). With masked sums, the
    roster is signed too, so its hash is needed.

    Examples
    --------
    zetadp federation approve node.yaml --key node-03.key
    zetadp federation approve node.yaml --key node-03.key --who 'A. Physician' --hash afd91ab78a7b
    """
    from zetadp.federation.flower.invitation import invitation
    from zetadp.federation.flower.participant import SHORTEST, Participant
    from zetadp.federation.flower.settings import HospitalSettings

    participant = Participant.read(HospitalSettings.read(settings), key)
    participant.check_cap()
    if who is not None and hash_ is not None:
        path = participant.approve(who, hash_, roster_hash)
        print(f"Approved by {who}: {path}. The node may start.")
        return
    if (hash_, who) != (None, None):
        raise UserError("Expected --who and --hash together, found one of them. Nothing is approved.")
    roster, attempts = participant.roster, participant.settings.attempts
    also = "" if roster is None else f" --roster-hash {roster.digest[:SHORTEST]}"
    print(
        f"{invitation(participant.plan, participant.name, roster)}\n\nThe settings permit {attempts} attempt(s).\n"
        "Nothing is approved yet. If you agree to all of this, run:\n"
        f"  zetadp federation approve {settings} --key {key} --who 'YOUR NAME' "
        f"--hash {participant.plan.digest[:SHORTEST]}{also}"
    )


def node(
    settings: OwnSettings,
    *,
    server: Annotated[str, "where the server listens", "HOST:PORT"],
    authority: Annotated[Path, "certificate of the authority (.pem)"],
    key: PrivateKey,
    idle_seconds: Annotated[Positive, "seconds between two requests for work"] = 1.0,
) -> None:
    """Run a hospital's node until it is stopped.

    The plan that the hospital's settings (node.yaml) name must have been approved. This needs the certificate (.pem) of
    the authority that signed the server's certificate, and the node's private key (.key). What happens is printed, for
    the log of a service manager.

    Examples
    --------
    zetadp federation node node.yaml --server server.example:9443 --authority authority.pem --key node-03.key
    zetadp federation node node.yaml --server 192.0.2.7:9443 --authority authority.pem --key a.key --idle-seconds 5
    """
    from zetadp.base.device import pick_device
    from zetadp.federation.flower.certificates import checked_server, read_certificate
    from zetadp.federation.flower.participant import Participant
    from zetadp.federation.flower.processes import SILENT, check_flower, folder_in_use
    from zetadp.federation.flower.settings import HospitalSettings

    check_flower()
    own = HospitalSettings.read(settings)
    checked_server(server)
    read_certificate(authority)
    participant = Participant.read(own, key)
    participant.check_cap()
    pick_device(own.device)
    approved = participant.approved()
    with folder_in_use(own.state.resolve(), f"state in {settings}"):
        tell(f"{participant.promise}; {approved}\n{participant.name} is starting.")
        os.environ.update(SILENT)
        log_to_terminal(f"{participant.name}: %(message)s")
        from zetadp.federation.flower.node import run_until_stopped

        run_until_stopped(settings=settings, server=server, authority=authority, key=key, idle_seconds=idle_seconds)
