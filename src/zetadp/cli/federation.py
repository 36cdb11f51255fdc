"""The commands of ``zetadp federation`` for a coordinator; `zetadp.cli.hospital` has those for a hospital."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import UserError
from zetadp.cli.helping import command, log_to_terminal, option, positive_number, tell, written
from zetadp.cli.hospital import PORT

if TYPE_CHECKING:
    from zetadp.core.plan import Plan


@command(
    "federation demo",
    examples=("federation demo", "federation demo --folder three-hospitals"),
    options=[
        option("--folder", type=Path, default=Path("demo"), help="new folder for all that is made (%(default)s)"),
    ],
)
def demo(given: argparse.Namespace) -> None:
    """Train between three simulated hospitals on this machine, in a minute.

    Simulate the patients of three hospitals, and train a private head between them over TLS, with noise from the
    operating system. Writes plan.json, model.safetensors, ledger.jsonl and privacy.json.
    """
    from zetadp.federation.flower.demo import run_demo

    model = run_demo(given.folder, tell)
    volume = next((given.folder / "server/imagesTs").iterdir())
    print(f"\nTry next:\n  zetadp predict {model} {volume}\n  zetadp risk {given.folder / 'ledger.jsonl'}")


@command(
    "federation certificates",
    examples=(
        "federation certificates keys --hosts server.example",
        "federation certificates trial --nodes node-01 node-02 node-03",
    ),
    options=[
        option("folder", type=Path, help="new or empty folder"),
        option("--nodes", nargs="*", default=[], metavar="NAME", help="for trials: names of the nodes"),
        option(
            "--hosts",
            nargs="*",
            default=[],
            help="names and addresses of the server, in addition to the loopback address",
        ),
    ],
)
def certificates(given: argparse.Namespace) -> None:
    """Make the certificate of the server.

    Make the certificate of a server (server.pem, server.key) and that of the authority that signs it (authority.pem).
    The authority's private key is not stored, so it signs nothing else. With --nodes, also make the keys of the nodes.
    That is for trials. In a real federation every hospital makes its own key (zetadp federation key), so that no
    private key is ever sent.
    """
    from zetadp.federation.flower.certificates import make_credentials

    with written():
        made = make_credentials(given.folder, given.nodes, given.hosts)
    print(f"for everybody:   {made.authority}")
    print(f"for the server:  {made.server[0]}, {made.server[1]} (secret)")
    for name in given.nodes:
        public, private = made.node(name)
        print(f"for {name}:  {private} (secret); its public key {public} is for the server")


@command(
    "federation plan",
    examples=(
        "federation plan federation.yaml --network pretrained --epsilon 8",
        "federation plan config.yaml over.yaml --network complex --epsilon 3 --output plan.json",
    ),
    options=[
        option("configuration", type=Path, nargs="+", help="config.yaml, and a scenario (.yaml) that changes it"),
        option("--network", required=True, help="name of the network in the configuration"),
        option("--epsilon", required=True, help="target epsilon of a run of the configuration"),
        option("--arm", default="federated", help="name of an arm with local noise or masked sums (%(default)s)"),
        option("--seed", type=int, default=0, help="seed of the run (%(default)s)"),
        option(
            "--backbone",
            type=Path,
            help="public backbone, for a network that needs one (default: the one in this package)",
        ),
        option("--output", type=Path, default=Path("plan.json"), help="file to write (%(default)s)"),
    ],
)
def plan(given: argparse.Namespace) -> None:
    """Write the plan of a run; every site gets a copy.

    Write the plan (plan.json) of a run of a configuration (.yaml), and print its cost in privacy for the patients of
    each hospital. The configuration needs no folder of patients, as a coordinator may have none.
    """
    from zetadp.config.load import read_overlaid
    from zetadp.core.promise import promise_of

    plan = _planned(_without_patients(read_overlaid(given.configuration)), given)
    plan.write(given.output)
    print(f"{given.output}: {plan.training.rounds} rounds, noise {plan.training.noise}; hash {plan.digest}")
    for node in plan.nodes:
        print(f"  {promise_of(plan, node.name)}")
        print(f"    of {node.population} {plan.unit}s, {node.expected:g} a round, sigma {node.noise_multiplier:g}")


def _without_patients(content: dict[str, Any]) -> dict[str, Any]:
    """Fill in the keys that a coordinator without patients cannot declare and no plan depends on."""
    cohort, partition = content.get("cohort"), content.setdefault("partition", {})
    if isinstance(cohort, dict) and cohort.get("source") == "folder" and cohort.get("folder") is None:
        if sizes := partition.get("sizes"):
            cohort["train_patients"] = sum(sizes)
        # The schema requires these for training on this machine; a plan contains none of them.
        cohort |= {"folder": ".", "unit": "record", "test_patients": 1}
        partition["validation_patients"] = 0
    return content


def _planned(content: dict[str, Any], given: argparse.Namespace) -> Plan:
    """Return the plan of a federated run of a configuration, with the noise that its epsilon needs."""
    from zetadp.base.epsilon import epsilon_label
    from zetadp.config.load import load_config
    from zetadp.core.plan import RunName
    from zetadp.core.pretrained import with_public
    from zetadp.core.promise import noise_of_plan
    from zetadp.nn.backbone import load_backbone, shipped_backbone

    config = load_config(content)
    run = RunName(given.network, given.arm, epsilon_label(given.epsilon), given.seed)
    federated = [each for each in config.run_names if config.threat(each.arm) != "central"]
    if run not in federated:
        known = "; ".join(f"{r.network} {r.arm} {r.epsilon} {r.seed}" for r in federated)
        found = f"{run.network} {run.arm} {given.epsilon} {run.seed}"
        raise UserError(f"Expected a federated run of the configuration ({known}), found {found}.")
    plan = config.plan(run)
    plan = plan.with_noise(noise_of_plan(plan))
    if not config.needs_backbone(run.network):
        return plan
    return with_public(plan, load_backbone(given.backbone or shipped_backbone(plan.network)))


@command(
    "federation kit",
    examples=(
        "federation kit plan.json --server server.example:9443 --authority keys/authority.pem",
        "federation kit plan.json --server 192.0.2.7:9443 --authority authority.pem --output for-hospitals",
    ),
    options=[
        option("plan", type=Path, help="the plan (.json)"),
        option("--server", required=True, metavar="HOST:PORT", help="where the server will listen"),
        option("--authority", type=Path, required=True, help="certificate (.pem) of the authority"),
        option(
            "--answer-seconds",
            type=positive_number,
            default=10.0,
            help="answer_seconds in the hospitals' settings, longer than a node computes for a round (%(default)s)",
        ),
        option("--output", type=Path, default=Path("kits"), help="new folder (%(default)s)"),
    ],
)
def kit(given: argparse.Namespace) -> None:
    """Write a folder for each hospital, and one for the server.

    Write a folder for each hospital of a plan (plan.json): the plan, the certificate of the authority (.pem), a page to
    read and approve, settings to fill in, a service for systemd and a compose file. Write the same for the server. No
    folder holds a private key: every hospital makes its own.
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.flower import kit

    plan = Plan.read(given.plan)
    reached = {"server": given.server, "authority": given.authority, "answer_seconds": given.answer_seconds}
    with written():
        *folders, own = kit.write_kits(plan, given.plan, given.output, **reached)
    for folder in folders:
        print(f"{folder}: send it to the hospital, which reads {kit.PAGE} first")
    print(f"{own}: for the server; read {kit.PAGE} first")
    print(f"Tell every hospital the hash of the plan by another way: {plan.digest}")


@command(
    "federation roster",
    examples=("federation roster plan.json node-01.member.json node-02.member.json node-03.member.json",),
    options=[
        option("plan", type=Path, help="the plan (plan.json), with masked sums"),
        option("members", type=Path, nargs="+", help="the member file (.json) of each hospital"),
        option("--output", type=Path, default=Path("roster.json"), help="file to write (%(default)s)"),
    ],
)
def roster(given: argparse.Namespace) -> None:
    """Make the roster of the hospitals of a plan with masked sums.

    Check the member files of all hospitals of a plan (plan.json), and write them as one roster (roster.json). Every
    site gets a copy. Its hash must reach every hospital by another way, because whoever can exchange a key unnoticed
    can read single messages.
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.masks import Roster

    made = Roster.made(Plan.read(given.plan), given.members)
    with written():
        made.write(given.output)
    print(f"{given.output}: {', '.join(member.name for member in made.members)}")
    print(f"Send it to every hospital. Tell every hospital its hash by another way: {made.digest}")


@command(
    "federation serve",
    examples=(
        "federation serve server.yaml --credentials keys",
        "federation serve server.yaml --credentials keys --port 8443",
    ),
    options=[
        option("settings", type=Path, help="settings of the server (YAML)"),
        option("--credentials", type=Path, required=True, help="folder with authority.pem, server.pem, server.key"),
        option("--host", default="0.0.0.0", help="address to listen at (%(default)s)"),  # noqa: S104  (nodes are elsewhere)
        option("--port", type=int, default=PORT, help="port to listen at (%(default)s)"),
    ],
)
def serve(given: argparse.Namespace) -> None:
    """Run the server for one training run, to its end.

    Run the server for one training run, to its end. Its settings (server.yaml) name the files for the model
    (.safetensors), its history (.csv) and the ledger (.jsonl). A receipt (.json) for each hospital is written next to
    the ledger. The exit code is 0 only if the model was written. After an interruption, start the same command again.
    """
    from zetadp.federation.flower.certificates import Credentials
    from zetadp.federation.flower.processes import SILENT, check_flower, require_free_port
    from zetadp.federation.flower.receipts import FOLDER, write_receipts
    from zetadp.federation.flower.settings import ServerSettings

    check_flower()
    settings = ServerSettings.read(given.settings)
    _, keys = settings.agreed()
    credentials = Credentials(given.credentials.resolve())
    credentials.check_server()
    require_free_port(given.host, given.port)
    os.environ.update(SILENT)
    log_to_terminal("%(message)s")
    tell(f"Serving at port {given.port}. Waiting for {', '.join(keys)}.")
    try:
        from zetadp.federation.flower.server import serve

        serve(given.settings, credentials.folder, given.host, given.port)
    except KeyboardInterrupt:
        raise UserError(
            "Stopped before the end of the run. Start the same command again to continue from the checkpoint."
        ) from None
    finally:
        # Receipts are due for a run that is given up too: its releases stay released.
        write_receipts(settings, credentials)
    print(f"model: {settings.model}\nhistory: {settings.history}\nledger: {settings.ledger}")
    print(f"receipts: {settings.ledger.parent / FOLDER}")
