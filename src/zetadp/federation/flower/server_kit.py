"""The folder for the server of a federation: plan, settings, a page to read, and files to start the server with.

It holds no private key: the coordinator puts the server's key and the hospitals' public keys into it.
"""

from __future__ import annotations

from pathlib import Path

from zetadp.base.storage import write_text
from zetadp.core.plan import Plan
from zetadp.federation.flower.kit import PAGE, duration, fingerprint, new_kit, port_of
from zetadp.federation.flower.services import compose_file, service_unit
from zetadp.federation.flower.settings import ServerSettings

NAME = "server"
TESTERS = "/data/Task01_testers"
PATIENCE_SECONDS = 86400.0

SETTINGS = """\
# Settings of the server. Paths are relative to this file.
plan: plan.json
keys:    # the public key that each hospital sent
{keys}
model: out/model.safetensors
history: out/history.csv
ledger: out/ledger.jsonl
ledger_file: state/{label}.jsonl    # the live ledger: back it up, never delete it, never put back an older copy
checkpoint: state/{label}.safetensors
# FILL IN, if you have test patients to watch the training with:
# watched: {testers}
# watched_patients: 6
patience: {{missing: wait, give_up_seconds: {patience:g}}}    # for a hospital that is away
"""

READ = """\
# The server of a federation

This folder is for the coordinator. It holds the plan and what the server needs, except keys and certificates. Keep it
on the machine {host}, which the hospitals reach at port {port}.

## Before the start

1. Install zetadp in a clone of its repository: `pip install '.[federation]'`.
2. Put `authority.pem`, `server.pem` and `server.key` into the folder `keys` here. If you do not have them, make them,
   and then make all kits again with the new authority.pem: `zetadp federation certificates keys --hosts {host}`.
   The file `authority.pem` must be the one beside this page, which every hospital has.
   Let nobody else read `server.key`.
3. Put the public key that each hospital sends into `keys`: {public}. Ask the hospital by telephone
   whether the key is theirs.
4. If you have test patients, fill in `watched` and `watched_patients` in `server.yaml`.
5. Open port {port}. Hospitals call this machine. It never calls a hospital.

Tell every hospital these two numbers by another way than its kit went, for example by telephone.

| what | number |
|:--|:--|
| hash of the plan | `{digest}` |
| SHA-256 fingerprint of authority.pem | `{fingerprint}` |

## Start

`zetadp federation {command}`

`zetadp-server.service` does this under systemd, and `compose.yaml` in a container. After an interruption, start the
same command again: the training continues from its checkpoint.

## What to expect

- The server prints the port, and the names of the hospitals that it waits for: {nodes}.
- It prints which hospitals are connected, and how far the {rounds} rounds are. A round takes at least {seconds:g}
  seconds, so the training takes about {duration} or more.
- If a hospital is away, the round waits for it, {hours:g} hours at most. Then the training ends with an error, and can
  be started again.
- At the end it prints where the model is, and ends with exit code 0.

## Afterwards

1. Send every hospital `out/model.safetensors`, `out/ledger.jsonl` and its receipt from `out/receipts`, and tell it that
   it may stop its node.
2. Keep the folder `state` and back it up. The figures of every later training of these hospitals depend on it.
"""


def write_server_kit(
    plan: Plan, source: Path, folder: Path, *, server: str, authority: Path, answer_seconds: float = 10.0
) -> Path:
    """Write the folder for the server, and return it.

    Parameters
    ----------
    plan, source
        The plan, and its file.
    folder
        Where the folders of the hospitals are.
    server
        ``host:port`` where hospitals reach the server.
    authority
        Certificate that the server's certificate goes back to.
    answer_seconds
        Least time of a round that the page states.
    """
    own = new_kit(folder / NAME, source, authority)
    (own / "keys").mkdir()
    names, port = [node.name for node in plan.nodes], port_of(server)
    command = f"serve server.yaml --credentials keys --port {port} --folder state/flower"
    keys = "\n".join(f"  {name}: keys/{name}.pub.pem" for name in names)
    text = SETTINGS.format(keys=keys, label=plan.label, testers=TESTERS, patience=PATIENCE_SECONDS)
    write_text(own / "server.yaml", text)
    ServerSettings.read(own / "server.yaml")
    write_text(own / "zetadp-server.service", service_unit(NAME, "Server", command, restart="on-failure"))
    where = compose_file(NAME, command, writable=("state", "out"), data=TESTERS, port=port, restart="on-failure")
    write_text(own / "compose.yaml", where)
    page = READ.format(
        host=server.rpartition(":")[0],
        port=port,
        public=", ".join(f"`{name}.pub.pem`" for name in names),
        digest=plan.digest,
        fingerprint=fingerprint(authority),
        command=command,
        nodes=", ".join(names),
        rounds=plan.training.rounds,
        seconds=answer_seconds,
        duration=duration(answer_seconds * plan.training.rounds),
        hours=PATIENCE_SECONDS / 3600,
    )
    write_text(own / PAGE, page)
    return own
