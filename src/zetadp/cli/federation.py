"""The commands of ``zetadp federation`` for a coordinator; `zetadp.cli.hospital` has those for a hospital."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.base.validation import UserError
from zetadp.cli.helping import explain, federation_command, log_to_terminal, tell, written
from zetadp.cli.hospital import PORT
from zetadp.cli.hospital import add_commands as add_commands_of_hospitals
from zetadp.cli.numbers import positive_number

if TYPE_CHECKING:
    from zetadp.core.plan import Plan


def add_commands(commands: Any) -> None:  # noqa: ANN401  (argparse does not name the type)
    """Add ``federation`` with its sub-commands to a parser's sub-commands."""
    parser = commands.add_parser(
        "federation",
        help="train between hospitals: plan, keys, server, nodes",
        description="Train between hospitals on Flower, over TLS and with keys. The recipe is docs/federation.md. "
        "Needs the extra `federation`.",
    )
    parts = parser.add_subparsers(required=True, metavar="COMMAND")
    for describe, name, help_, run in (
        (_demo, "demo", "train between three simulated hospitals on this machine, in a minute", _run_demo),
        (_certificates, "certificates", "make the certificate of the server", _run_certificates),
        (_plan, "plan", "write the plan of a run; every site gets a copy", _run_plan),
        (_kit, "kit", "write a folder for each hospital, and one for the server", _run_kit),
        (_serve, "serve", "run the server for one training run, to its end", _run_serve),
    ):
        describe(federation_command(parts, name, help_, run))
    add_commands_of_hospitals(parts)


def _demo(parser: argparse.ArgumentParser) -> None:
    explain(
        parser,
        "Simulate the patients of three hospitals, and train a private head between them over TLS, with noise from the "
        "operating system. Writes plan.json, model.safetensors, ledger.jsonl and privacy.json.",
        examples=("federation demo", "federation demo --folder three-hospitals"),
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("demo"), help="new folder for all that is made (%(default)s)"
    )


def _run_demo(given: argparse.Namespace) -> None:
    from zetadp.federation.flower.demo import run_demo

    model = run_demo(given.folder, tell)
    volume = next((given.folder / "server/imagesTs").iterdir())
    print(f"\nTry next:\n  zetadp predict {model} {volume}\n  zetadp risk {given.folder / 'ledger.jsonl'}")


def _certificates(parser: argparse.ArgumentParser) -> None:
    explain(
        parser,
        "Make the certificate of a server (server.pem, server.key) and that of the authority that signs it "
        "(authority.pem). The authority's private key is not stored, so it signs nothing else. With --nodes, also make "
        "the keys of the nodes. That is for trials. In a real federation every hospital makes its own key (zetadp "
        "federation key), so that no private key is ever sent.",
        examples=(
            "federation certificates keys --hosts server.example",
            "federation certificates trial --nodes node-01 node-02 node-03",
        ),
    )
    parser.add_argument("folder", type=Path, help="new or empty folder")
    parser.add_argument("--nodes", nargs="*", default=[], metavar="NAME", help="for trials: names of the nodes")
    parser.add_argument(
        "--hosts", nargs="*", default=[], help="names and addresses of the server, in addition to the loopback address"
    )


def _run_certificates(given: argparse.Namespace) -> None:
    from zetadp.federation.flower.certificates import make_credentials

    with written():
        made = make_credentials(given.folder, given.nodes, given.hosts)
    print(f"for everybody:   {made.authority}")
    print(f"for the server:  {made.server[0]}, {made.server[1]} (secret)")
    for name in given.nodes:
        public, private = made.node(name)
        print(f"for {name}:  {private} (secret); its public key {public} is for the server")


def _plan(parser: argparse.ArgumentParser) -> None:
    explain(
        parser,
        "Write the plan (plan.json) of a run of a configuration (.yaml), and print its cost in privacy for the "
        "patients of each hospital. The configuration needs no folder of patients, as a coordinator may have none.",
        examples=(
            "federation plan federation.yaml --network pretrained --epsilon 8",
            "federation plan config.yaml over.yaml --network complex --epsilon 3 --output plan.json",
        ),
    )
    parser.add_argument(
        "configuration", type=Path, nargs="+", help="config.yaml, and a scenario (.yaml) that changes it"
    )
    parser.add_argument("--network", required=True, help="name of the network in the configuration")
    parser.add_argument("--epsilon", required=True, help="target epsilon of a run of the configuration")
    parser.add_argument("--arm", default="federated", help="name of an arm with local noise (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (%(default)s)")
    parser.add_argument(
        "--backbone", type=Path, help="public backbone, for a network that needs one (default: the one in this package)"
    )
    parser.add_argument("--output", type=Path, default=Path("plan.json"), help="file to write (%(default)s)")


def _run_plan(given: argparse.Namespace) -> None:
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
    from zetadp.core.promise import noise_of_plan
    from zetadp.core.start import shipped_backbone, with_public
    from zetadp.nn.backbone import load_backbone

    config = load_config(content)
    run = RunName(given.network, given.arm, epsilon_label(given.epsilon), given.seed)
    federated = [each for each in config.run_names if config.threat(each.arm) == "local"]
    if run not in federated:
        known = "; ".join(f"{r.network} {r.arm} {r.epsilon} {r.seed}" for r in federated)
        found = f"{run.network} {run.arm} {given.epsilon} {run.seed}"
        raise UserError(f"Expected a federated run of the configuration ({known}), found {found}.")
    plan = config.plan(run)
    plan = plan.with_noise(noise_of_plan(plan))
    if not config.needs_backbone(run.network):
        return plan
    return with_public(plan, load_backbone(given.backbone or shipped_backbone(plan.network)))


def _kit(parser: argparse.ArgumentParser) -> None:
    explain(
        parser,
        "Write a folder for each hospital of a plan (plan.json): the plan, the certificate of the authority (.pem), a "
        "page to read and approve, settings to fill in, a service for systemd and a compose file. Write the same for "
        "the server. No folder holds a private key: every hospital makes its own.",
        examples=(
            "federation kit plan.json --server server.example:9443 --authority keys/authority.pem",
            "federation kit plan.json --server 192.0.2.7:9443 --authority authority.pem --output for-hospitals",
        ),
    )
    parser.add_argument("plan", type=Path, help="the plan (.json)")
    parser.add_argument("--server", required=True, metavar="HOST:PORT", help="where the server will listen")
    parser.add_argument("--authority", type=Path, required=True, help="certificate (.pem) of the authority")
    parser.add_argument(
        "--answer-seconds",
        type=positive_number,
        default=10.0,
        help="answer_seconds in the hospitals' settings, longer than a node computes for a round (%(default)s)",
    )
    parser.add_argument("--output", type=Path, default=Path("kits"), help="new folder (%(default)s)")


def _run_kit(given: argparse.Namespace) -> None:
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


def _serve(parser: argparse.ArgumentParser) -> None:
    explain(
        parser,
        "Run the server for one training run, to its end. Its settings (server.yaml) name the files for the model "
        "(.safetensors), its history (.csv) and the ledger (.jsonl). A receipt (.json) for each hospital is written "
        "next to the ledger. The exit code is 0 only if the model was written. After an interruption, start the same "
        "command again.",
        examples=(
            "federation serve server.yaml --credentials keys",
            "federation serve server.yaml --credentials keys --port 8443",
        ),
    )
    parser.add_argument("settings", type=Path, help="settings of the server (YAML)")
    parser.add_argument(
        "--credentials", type=Path, required=True, help="folder with authority.pem, server.pem, server.key"
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen at (%(default)s)")  # noqa: S104  (nodes are elsewhere)
    parser.add_argument("--port", type=int, default=PORT, help="port to listen at (%(default)s)")


def _run_serve(given: argparse.Namespace) -> None:
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
