"""The commands of ``zetadp federation`` for a coordinator; `zetadp.cli.hospital` has those for a hospital."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from zetadp.base.validation import UserError
from zetadp.cli.arguments import log_to_terminal, tell
from zetadp.cli.hospital import PORT


def demo(*, folder: Annotated[Path, "new folder for all that is made"] = Path("demo")) -> None:
    """Train between three simulated hospitals on this machine, in a minute.

    They train a private head over TLS, with noise from the operating system. The folder then holds plan.json,
    model.safetensors, ledger.jsonl and privacy.json.

    Examples
    --------
    zetadp federation demo
    zetadp federation demo --folder three-hospitals
    """
    from zetadp.federation.flower.demo import run_demo

    model = run_demo(folder, tell)
    volume = next((folder / "server/imagesTs").iterdir())
    print(f"\nTry next:\n  zetadp predict {model} {volume}\n  zetadp risk {folder / 'ledger.jsonl'}")


def certificates(
    folder: Annotated[Path, "new or empty folder"],
    *,
    nodes: Annotated[Sequence[str], "for trials: names of the nodes", "NAME"] = (),
    hosts: Annotated[Sequence[str], "names and addresses of the server, in addition to the loopback address"] = (),
) -> None:
    """Make the certificate of the server.

    Its files are server.pem and server.key. The certificate of the authority that signs it is authority.pem. The
    authority's private key is not stored, so it signs nothing else. With --nodes, also make the keys of the nodes.
    That is for trials. In a real federation every hospital makes its own key (zetadp federation key), so that no
    private key is ever sent.

    Examples
    --------
    zetadp federation certificates keys --hosts server.example
    zetadp federation certificates trial --nodes node-01 node-02 node-03
    """
    from zetadp.federation.flower.certificates import make_credentials

    made = make_credentials(folder, nodes, hosts)
    print(f"for everybody:   {made.authority}")
    print(f"for the server:  {made.server[0]}, {made.server[1]} (secret)")
    for name in nodes:
        public, private = made.node(name)
        print(f"for {name}:  {private} (secret); its public key {public} is for the server")


def plan(
    configuration: Annotated[Sequence[Path], "config.yaml, and a scenario (.yaml) that changes it"],
    *,
    network: Annotated[str, "name of the network in the configuration"],
    epsilon: Annotated[str, "target epsilon of a run of the configuration"],
    arm: Annotated[str, "name of an arm with local noise or masked sums"] = "federated",
    seed: Annotated[int, "seed of the run"] = 0,
    backbone: Annotated[
        Path | None, "public backbone, for a network that needs one (default: the one in this package)"
    ] = None,
    output: Annotated[Path, "file to write"] = Path("plan.json"),
) -> None:
    """Write the plan of a run; every site gets a copy.

    The run is one of a configuration (.yaml), which needs no folder of patients, as a coordinator may have none. The
    plan's cost in privacy for the patients of each hospital is printed.

    Examples
    --------
    zetadp federation plan federation.yaml --network pretrained --epsilon 8
    zetadp federation plan config.yaml over.yaml --network complex --epsilon 3 --output plan.json
    """
    from zetadp.base.epsilon import epsilon_label
    from zetadp.config.load import load_config, read_overlaid
    from zetadp.core.plan import RunName
    from zetadp.core.pretrained import with_public
    from zetadp.core.promise import noise_of_plan, promise_of
    from zetadp.nn.backbone import load_backbone, shipped_backbone

    config = load_config(_without_patients(read_overlaid(configuration)))
    run = RunName(network, arm, epsilon_label(epsilon), seed)
    federated = [each for each in config.run_names if config.threat(each.arm) != "central"]
    if run not in federated:
        known = "; ".join(f"{r.network} {r.arm} {r.epsilon} {r.seed}" for r in federated)
        found = f"{run.network} {run.arm} {epsilon} {run.seed}"
        raise UserError(f"Expected a federated run of the configuration ({known}), found {found}.")
    planned = config.plan(run)
    planned = planned.with_noise(noise_of_plan(planned))
    if config.networks[network].needs_backbone:
        planned = with_public(planned, load_backbone(backbone or shipped_backbone(planned.network)))
    planned.write(output)
    print(f"{output}: {planned.training.rounds} rounds, noise {planned.training.noise}; hash {planned.digest}")
    for node in planned.nodes:
        print(f"  {promise_of(planned, node.name)}")
        print(f"    of {node.population} {planned.unit}s, {node.expected:g} a round, sigma {node.noise_multiplier:g}")


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


def kit(
    plan: Annotated[Path, "the plan (.json)"],
    *,
    server: Annotated[str, "where the server will listen", "HOST:PORT"],
    authority: Annotated[Path, "certificate (.pem) of the authority"],
    output: Annotated[Path, "new folder"] = Path("kits"),
) -> None:
    """Write a folder for each hospital, and one for the server.

    A folder holds the plan (plan.json), the certificate of the authority (.pem), a page to read, settings to fill in, a
    service for systemd and a compose file. No folder holds a private key: every hospital makes its own.

    Examples
    --------
    zetadp federation kit plan.json --server server.example:9443 --authority keys/authority.pem
    zetadp federation kit plan.json --server 192.0.2.7:9443 --authority authority.pem --output for-hospitals
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.flower.kit import PAGE, write_kits

    agreed = Plan.read(plan)
    *folders, own = write_kits(agreed, plan, output, server=server, authority=authority)
    for folder in folders:
        print(f"{folder}: send it to the hospital, which reads {PAGE} first")
    print(f"{own}: for the server; read {PAGE} first")
    print(f"Tell every hospital the hash of the plan by another way: {agreed.digest}")


def roster(
    plan: Annotated[Path, "the plan (plan.json), with masked sums"],
    members: Annotated[Sequence[Path], "the member file (.json) of each hospital"],
    *,
    output: Annotated[Path, "file to write"] = Path("roster.json"),
) -> None:
    """Make the roster of the hospitals of a plan with masked sums.

    The member files of all hospitals are checked and written as one roster (roster.json). Every site gets a copy. Its
    hash must reach every hospital by another way, because whoever can exchange a key unnoticed can read single
    messages.

    Examples
    --------
    zetadp federation roster plan.json node-01.member.json node-02.member.json node-03.member.json
    """
    from zetadp.core.plan import Plan
    from zetadp.federation.masks import Roster

    made = Roster.made(Plan.read(plan), members)
    made.write(output)
    print(f"{output}: {', '.join(member.name for member in made.members)}")
    print(f"Send it to every hospital. Tell every hospital its hash by another way: {made.digest}")


def serve(
    settings: Annotated[Path, "settings of the server (YAML)"],
    *,
    credentials: Annotated[Path, "folder with authority.pem, server.pem, server.key"],
    host: Annotated[str, "address to listen at"] = "0.0.0.0",  # noqa: S104  (nodes are elsewhere)
    port: Annotated[int, "port to listen at"] = PORT,
) -> None:
    """Run the server for one training run, to its end.

    Its settings (server.yaml) name the files for the model (.safetensors), its history (.csv) and the ledger (.jsonl).
    A receipt (.json) for each hospital is written next to the ledger. The exit code is 0 only if the model was written.
    After an interruption, start the same command again.

    Examples
    --------
    zetadp federation serve server.yaml --credentials keys
    zetadp federation serve server.yaml --credentials keys --port 8443
    """
    from zetadp.federation.flower.certificates import Credentials
    from zetadp.federation.flower.processes import SILENT, check_flower, require_free_port
    from zetadp.federation.flower.receipts import FOLDER, write_receipts
    from zetadp.federation.flower.settings import ServerSettings

    check_flower()
    own = ServerSettings.read(settings)
    _, keys = own.agreed()
    files = Credentials(credentials.resolve())
    files.check_server()
    require_free_port(host, port)
    os.environ.update(SILENT)
    log_to_terminal("%(message)s")
    tell(f"Serving at port {port}. Waiting for {', '.join(keys)}.")
    try:
        from zetadp.federation.flower import server

        server.serve(settings, files.folder, host, port)
    except KeyboardInterrupt:
        raise UserError(
            "Stopped before the end of the run. Start the same command again to continue from the checkpoint."
        ) from None
    finally:
        # Receipts are due for a run that is given up too: its releases stay released.
        write_receipts(own, files)
    print(f"model: {own.model}\nhistory: {own.history}\nledger: {own.ledger}")
    print(f"receipts: {own.ledger.parent / FOLDER}")
