"""The commands of ``zetadp federation``: for a coordinator, from ``demo`` to ``serve``, and for a hospital."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from zetadp.base.validation import Positive, UserError, counted, needs_a_person
from zetadp.cli.arguments import SERVER, log_to_terminal, print_now

if TYPE_CHECKING:
    from zetadp.hospitals.health import Health
    from zetadp.hospitals.roster import Roster
    from zetadp.training.plan import Plan

logger = logging.getLogger(__name__)

LogJson = Annotated[bool, "write one JSON object per log line"]
HealthAddress = Annotated[str, "address for Prometheus and health checks, such as 127.0.0.1:9464", "HOST:PORT"]
PORT = 9443
"""Default port of a server."""
OwnSettings = Annotated[Path, "settings of the hospital (YAML)"]
PrivateKey = Annotated[Path, "the node's private key (.key)"]


def demo(*, folder: Annotated[Path, "new folder for all files"] = Path("demo")) -> None:
    """Train across three simulated hospitals on this machine, in a few minutes.

    They train a private head over TLS, with noise from the operating system. The folder then has plan.json,
    model.safetensors, ledger.jsonl and privacy.json.

    Examples
    --------
    zetadp federation demo
    zetadp federation demo --folder three-hospitals
    """
    from zetadp.hospitals.demo import run_demo

    model = run_demo(folder, print_now)
    volume = next((folder / "server/imagesTs").iterdir())
    print(f"\nTry next:\n  zetadp predict {model} {volume}\n  zetadp risk {folder / 'ledger.jsonl'}")


def certificates(
    folder: Annotated[Path, "new or empty folder"],
    *,
    hosts: Annotated[Sequence[str], "names and addresses of the server, in addition to the loopback address"] = (),
) -> None:
    """Make the certificate of the server.

    The files are server.pem and server.key. The certificate is signed with its own key, so hospitals trust a copy of
    it, authority.pem. Every hospital makes its own key (zetadp federation key), so no private key is ever sent.

    Examples
    --------
    zetadp federation certificates keys --hosts server.example
    zetadp federation certificates keys --hosts server.example 192.0.2.7
    """
    from zetadp.hospitals.certificates import make_credentials

    files = make_credentials(folder, hosts=hosts)
    print(f"for everybody:   {files.authority}")
    print(f"for the server:  {files.server[0]}, {files.server[1]} (secret)")


def plan(
    configuration: Annotated[Sequence[Path], "config.yaml, and scenarios (.yaml) that change it"],
    *,
    network: Annotated[str, "name of the network in the configuration"],
    epsilon: Annotated[str, "target epsilon of the run in the configuration"],
    arm: Annotated[str, "name of the arm, with local noise or masked sums"] = "federated",
    seed: Annotated[int, "seed of the run"] = 0,
    backbone: Annotated[
        Path | None, "public backbone, for a network that needs one (default: the one in this package)"
    ] = None,
    output: Annotated[Path, "file to write"] = Path("plan.json"),
) -> None:
    """Write the plan of a run; every site gets a copy.

    The run is one of a configuration (.yaml). The configuration needs no folder of patients, because a coordinator may
    have none. The output gives the cost in privacy for the patients of each hospital. Another plan is never
    overwritten: each training needs a file of its own (--output).

    Examples
    --------
    zetadp federation plan federation.yaml --network pretrained --epsilon 8
    zetadp federation plan config.yaml over.yaml --network complex --epsilon 3 --output plan.json
    """
    from zetadp.base.epsilon import Target
    from zetadp.base.runfolder import RunName
    from zetadp.config.load import load_config, read_overlaid
    from zetadp.training.pretrained import public_network, with_public
    from zetadp.training.promise import make_plan, promise_of

    config = load_config(_without_patients(read_overlaid(configuration)))
    run = RunName(network, arm, Target.read(epsilon), seed)
    federated = [candidate for candidate in config.run_names if config.threat(candidate.arm) != "central"]
    if run not in federated:
        known = "; ".join(f"{r.network} {r.arm} {r.target} {r.seed}" for r in federated)
        name = f"{run.network} {run.arm} {epsilon} {run.seed}"
        raise UserError(f"Expected a federated run of the configuration ({known}), found {name}.")
    planned = make_plan(config.plan(run))
    if config.networks[network].needs_backbone:
        planned = with_public(planned, public_network(planned, backbone))
    _write_terms(planned, output)
    print(
        f"{output}: {counted(planned.training.rounds, 'round')}, noise {planned.training.noise}; hash {planned.digest}"
    )
    for node in planned.nodes:
        print(f"  {promise_of(planned, node.name)}")
        print(
            f"    of {counted(node.population, planned.protects)}, {node.expected:g} a round, "
            f"sigma {node.noise_multiplier:g}"
        )


def _write_terms(terms: Plan | Roster, output: Path) -> None:
    """Write a plan or a roster, but not over another one, which sites may have approved or train by."""
    if output.exists():
        try:
            same = type(terms).read(output).digest == terms.digest
        except UserError:
            same = False
        if not same:
            raise UserError(
                f"Expected a new file, found {output} with other content. Hospitals may have approved it: name another "
                "file with --output, or delete this one if nobody has it."
            )
    terms.write(output)


def _without_patients(content: dict[str, Any]) -> dict[str, Any]:
    """Fill in the keys that a coordinator without patients cannot declare and no plan depends on."""
    cohort, partition = content.get("cohort"), content.setdefault("partition", {})
    if isinstance(cohort, dict) and cohort.get("source") == "folder" and cohort.get("folder") is None:
        if sizes := partition.get("sizes"):
            cohort["train_patients"] = sum(sizes)
        # The schema requires these keys for training on this machine; a plan does not contain them. Each hospital must
        # declare which records belong to one patient, and its node refuses to start without that declaration.
        cohort |= {"folder": ".", "test_patients": 1}
        cohort.setdefault("one_record_per_patient", not cohort.get("patient_key"))
        partition["validation_patients"] = 0
    return content


def kit(
    plan: Annotated[Path, "the plan (.json)"],
    *,
    server: Annotated[str, "address of the server", "HOST:PORT"],
    authority: Annotated[Path, "certificate of the authority (.pem)"],
    output: Annotated[Path, "new folder"] = Path("kits"),
) -> None:
    """Write a folder for each hospital.

    Each folder has the plan (plan.json), the certificate of the authority (.pem), a page to read, settings to fill in,
    a service for systemd and a compose file. No folder has a private key: every hospital makes its own.

    Examples
    --------
    zetadp federation kit plan.json --server server.example:9443 --authority keys/authority.pem
    zetadp federation kit plan.json --server 192.0.2.7:9443 --authority authority.pem --output for-hospitals
    """
    from zetadp.hospitals.kit import SERVER_UNIT, write_kits

    for folder in write_kits(plan, output, server=server, authority=authority):
        print(f"{folder}: send it to the hospital, which reads READ_ME_FIRST.md first")
    print(f"{output / SERVER_UNIT}: for the server, if systemd runs it")


def roster(
    plan: Annotated[Path, "the plan (plan.json), with masked sums"],
    members: Annotated[Sequence[Path], "the member file (.json) of each hospital"],
    *,
    output: Annotated[Path, "file to write"] = Path("roster.json"),
) -> None:
    """Make the roster of the hospitals of a plan with masked sums.

    The member files of all hospitals are checked, and written with the plan as one roster (roster.json). Every site
    gets a copy, and its settings name the roster in place of the plan. Send the hash of the roster to every hospital by
    another way: an attacker who exchanges a key unnoticed can read single messages.

    Examples
    --------
    zetadp federation roster plan.json node-01.member.json node-02.member.json node-03.member.json
    """
    from zetadp.hospitals.roster import Roster
    from zetadp.training.plan import Plan

    agreed = Roster.from_files(Plan.read(plan), members)
    _write_terms(agreed, output)
    print(f"{output}: {', '.join(member.name for member in agreed.members)}")
    print(f"Send it to every hospital. Tell every hospital its hash by another way: {agreed.digest}")


def serve(
    settings: Annotated[Path, "settings of the server (YAML)"],
    *,
    credentials: Annotated[Path, "folder with authority.pem, server.pem, server.key"],
    host: Annotated[str, "address to listen on"] = "0.0.0.0",  # noqa: S104  (nodes are elsewhere)
    port: Annotated[int, "port to listen on"] = PORT,
    log_json: LogJson = False,
    health: HealthAddress = "",
) -> None:
    """Run the server for one training run, to its end.

    The settings (server.yaml) name the files for the model (.safetensors), its history (.csv) and the ledger (.jsonl).
    At the end, the server prints the last line of each hospital's ledger, for the hospital to note. The exit code is 0
    only if the model was written. After an interruption, start the same command again. After the end, it changes
    nothing and ends with exit code 0.

    Examples
    --------
    zetadp federation serve server.yaml --credentials keys
    zetadp federation serve server.yaml --credentials keys --port 8443
    """
    from zetadp.hospitals.certificates import Credentials
    from zetadp.hospitals.launcher import require_free_port
    from zetadp.hospitals.settings import ServerSettings

    with needs_a_person():
        server_settings = ServerSettings.read(settings)
        plan, keys, _ = server_settings.agreed
        server_settings.check_files()
        files = Credentials(credentials.resolve())
        files.check_server()
    if server_settings.is_finished:
        print(f"The run is finished: its model is {server_settings.model}. Name other files for another run.")
        return
    require_free_port(host, port)
    counters = _health(health, plan.training.rounds)
    log_to_terminal(SERVER, as_json=log_json)
    logger.info("Serving at port %d. Waiting for %s.", port, ", ".join(keys))
    try:
        from zetadp.hospitals import server

        server.serve(server_settings, files, host, port, counters)
    except KeyboardInterrupt:
        raise UserError(
            "Stopped before the end of the run. Start the same command again to continue from the checkpoint."
        ) from None
    for description, path in (
        ("model", server_settings.model),
        ("history", server_settings.history),
        ("ledger", server_settings.ledger),
    ):
        logger.info("%s: %s", description, path)


def key(
    public: Annotated[Path, "file for the public key, which goes to the coordinator"],
    private: Annotated[Path, "file for the private key, which never leaves the hospital"],
) -> None:
    """Make the key pair of one node, at that node.

    The public key (.pub.pem) is for the coordinator. The private key (.key), in OpenSSH's format, never leaves the
    hospital.

    Examples
    --------
    zetadp federation key node-03.pub.pem node-03.key
    zetadp federation key keys/north.pub.pem keys/north.key
    """
    from zetadp.hospitals.certificates import make_node_key

    for path in (public, private):
        if path.exists():
            raise UserError(f"Expected {path} to be absent, found a file. A key in use must not be lost: name another.")
    make_node_key(public, private)
    print(f"Send {public} to the coordinator. Keep {private} here, and secret.")


def member(
    plan: Annotated[Path, "the plan (plan.json), with masked sums"],
    node: Annotated[str, "name of the hospital's node"],
    *,
    key: PrivateKey,
    output: Annotated[Path, "folder for the member file", "FOLDER"] = Path(),
) -> None:
    """Make a hospital's agreement key for one plan, and the file that states it.

    A plan (plan.json) with masked sums needs this key. The private key is stored next to the node's signing key (.key)
    and never leaves the hospital. The member file (NAME.member.json) states the public key, signed with the signing
    key. Send it to the coordinator, who makes the roster of all members.

    Examples
    --------
    zetadp federation member plan.json node-03 --key node-03.key
    """
    from zetadp.hospitals.participant import agreement_file, make_member
    from zetadp.training.plan import Plan

    agreed = Plan.read(plan)
    path = make_member(agreed, node, key, output)
    print(f"Send {path} to the coordinator. Keep {agreement_file(key, agreed)} here, and delete it after the run.")


def approve(
    settings: OwnSettings,
    *,
    key: PrivateKey,
    who: Annotated[str, "name of the person who approves"] = "",
    hash_: Annotated[str | None, "hash of the plan or the roster; its first twelve digits are enough"] = None,
) -> None:
    """Approve a plan at a hospital, so that its node can start.

    The hospital's settings (node.yaml) name the plan (plan.json). Without --hash, print the plan and approve nothing.
    With --hash and --who, sign the plan and the number of permitted attempts with the node's private key (.key). With
    masked sums, the hash is that of the roster, which contains the plan.

    Examples
    --------
    zetadp federation approve node.yaml --key node-03.key
    zetadp federation approve node.yaml --key node-03.key --who 'A. Physician' --hash afd91ab78a7b
    """
    from zetadp.hospitals.kit import invitation
    from zetadp.hospitals.participant import MIN_DIGITS, Participant
    from zetadp.hospitals.settings import HospitalSettings

    participant = Participant.read(HospitalSettings.read(settings), key)
    if bool(who) != (hash_ is not None):
        raise UserError("Expected --who and --hash together, found one of them. Nothing is approved.")
    if hash_ is not None:
        print(f"Approved by {who}: {participant.approve(who, hash_)}.")
        try:
            participant.check_patients()
        except UserError as error:
            print(f"The node cannot start yet. {error}")
        else:
            print("The node may start. It checks the patients first.")
        return
    print(
        f"{invitation(participant.plan, participant.name, participant.roster)}\n\n"
        f"Attempts that the settings permit: {participant.settings.attempts}.\n{participant.with_recorded()}"
        "Nothing is approved yet. If you agree to all of this, run:\n"
        f"  zetadp federation approve {settings} --key {key} --who 'YOUR NAME' --hash {participant.digest[:MIN_DIGITS]}"
    )


def node(
    settings: OwnSettings,
    *,
    server: Annotated[str, "address of the server", "HOST:PORT"],
    authority: Annotated[Path, "certificate of the authority (.pem)"],
    key: PrivateKey,
    idle_seconds: Annotated[Positive, "number of seconds between two requests for work"] = 1.0,
    log_json: LogJson = False,
    health: HealthAddress = "",
) -> None:
    """Run a hospital's node until it is stopped.

    The plan that the hospital's settings (node.yaml) name must have been approved. The node needs the certificate
    (.pem) of the authority that signed the server's certificate, and its own private key (.key). It prints what
    happens, for the log of a service manager.

    Examples
    --------
    zetadp federation node node.yaml --server server.example:9443 --authority authority.pem --key node-03.key
    zetadp federation node node.yaml --server 192.0.2.7:9443 --authority authority.pem --key a.key --idle-seconds 5
    """
    from zetadp.base.storage import private_files
    from zetadp.base.tensors import pick_device
    from zetadp.hospitals.certificates import checked_server, read_certificate
    from zetadp.hospitals.participant import Participant
    from zetadp.hospitals.settings import HospitalSettings

    with needs_a_person():
        hospital_settings = HospitalSettings.read(settings)
        checked_server(server)
        read_certificate(authority)
        participant = Participant.read(hospital_settings, key)
        pick_device(hospital_settings.device)
        approved = participant.check_approved()
        counters = _health(health, participant.plan.training.rounds, node=True)
    log_to_terminal(participant.name, as_json=log_json)
    logger.info("%s; %s; starting", participant.promise.terms, approved)
    from zetadp.hospitals.node import run_node

    with private_files():  # only the hospital's own user may read prepared patients, ledgers and messages
        run_node(participant, server, authority, idle_seconds, counters)


def _health(address: str, rounds: int, *, node: bool = False) -> Health:
    from zetadp.hospitals.health import Health

    counters = Health(rounds, node=node)
    if address:
        counters.serve(address)
    return counters
