"""A folder for each hospital: the plan, what to read before agreeing to it, and files to start a node with.

No folder holds a private key. Each hospital makes its own, so no key is ever sent, and a lost folder reveals none. The
folder for the server is made by `zetadp.federation.flower.server_kit`.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import write_text
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.federation.flower.certificates import check_certificate
from zetadp.federation.flower.services import compose_file, service_unit
from zetadp.federation.flower.settings import HospitalSettings
from zetadp.federation.invitation import invitation
from zetadp.privacy.calibration import promise_of

IMAGES = "/data/Task01_BrainTumour"
PAGE = "READ_ME_FIRST.md"
PORTS = 2**16

SETTINGS = """\
# Settings of {name}. Fill in the folder of the images. Paths are relative to this file.
name: {name}
plan: plan.json
images: {images}    # FILL IN: this hospital's training patients and nobody else's
state: state        # the ledger is here: back it up, never delete it, never put back an older copy
attempts: 1         # how often the training may begin from its first round; each attempt costs as much again
most_epsilon: {epsilon}    # the most that all attempts together may cost a patient
answer_seconds: {seconds:g}  # must exceed the time of a round in which every patient is drawn
"""

READ = """\
# {name}: a training that asks for your approval

You are invited to train a model together with other hospitals. This folder holds the plan and what you need to take
part. It holds no private key. You make your own, and it never leaves your hospital.

## What the plan does, and what it costs

```text
{invitation}
```

A patient is one volume, unless `patient_key.tsv` in the folder of images says which volumes belong to one person.
`zetadp convert` writes this file. Without it, a person with several volumes has less protection than stated here.

Every round takes at least {seconds:g} seconds (`answer_seconds`), so all rounds take about {duration} or more.

## Check by another way than this folder came

Ask the coordinator, for example by telephone, for these two numbers. They must agree with yours.

| what | number |
|:--|:--|
| hash of the plan | `{digest}` |
| SHA-256 fingerprint of authority.pem | `{fingerprint}` |

`openssl x509 -in authority.pem -noout -fingerprint -sha256` prints the second number of your own copy. Step 4 below
prints the first.

## Take part

1. Install zetadp in a clone of its repository: `pip install '.[federation]'`.
2. Make your key, and send the public half to the coordinator: `zetadp federation key {name}.pub.pem {name}.key`
3. Fill in `images` in `node.yaml`: the folder that `zetadp convert SCANS Task01_BrainTumour --test-fraction 0` makes
   from your scans.
4. Read the plan again with your own copy of zetadp (the same command without `--who` and `--hash`), and approve it. The
   node starts only after that:
   `zetadp federation approve node.yaml --key {name}.key --who 'YOUR NAME' --hash {short}`
5. Start the node: `zetadp federation node {arguments}`.
   `zetadp-{name}.service` does this under systemd, and `compose.yaml` in a container.
6. Stop the node when the coordinator says that the model is there. Keep the folder `state` and back it up.
7. Keep the receipt that the coordinator sends outside of `state`. It shows whether your ledger is the newest:
   `zetadp verify --receipt {name}.json --authority authority.pem --ledgers state/ledgers`
"""


def write_kits(
    plan: Plan, source: Path, folder: Path, *, server: str, authority: Path, answer_seconds: float = 10.0
) -> list[Path]:
    """Write a folder for each hospital of a plan, and return the folders.

    Parameters
    ----------
    plan, source
        The plan, and its file.
    folder
        A new folder for all of them.
    server
        ``host:port`` of the server.
    authority
        Certificate that the server's certificate goes back to.
    answer_seconds
        What the settings say until a hospital changes it.

    Raises
    ------
    UserError
        If the folder is there already, the certificate is none, or the address has no port.
    """
    check_certificate(authority)
    port_of(server)
    if folder.exists():
        raise UserError(f"Expected a new folder, found {folder}. Name another: --output FOLDER")
    written = []
    for node in plan.nodes:
        own = new_kit(folder / node.name, source, authority)
        arguments = f"node.yaml --server {server} --authority authority.pem --key {node.name}.key"
        epsilon = rounded_up(promise_of(plan, node.name).person)
        write_text(
            own / "node.yaml",
            SETTINGS.format(name=node.name, images=IMAGES, epsilon=epsilon, seconds=answer_seconds),
        )
        command = f"node {arguments}"
        unit = service_unit(node.name, f"Node {node.name}", command, restart="always")
        write_text(own / f"zetadp-{node.name}.service", unit)
        compose = compose_file("node", command, writable=("state",), data=IMAGES, restart="unless-stopped")
        write_text(own / "compose.yaml", compose)
        write_text(own / PAGE, _page(plan, node.name, authority, arguments, answer_seconds))
        HospitalSettings.read(own / "node.yaml")
        written.append(own)
    return written


def new_kit(folder: Path, source: Path, authority: Path) -> Path:
    """Return a new folder with what every site gets: the plan and the certificate of the authority."""
    folder.mkdir(parents=True)
    shutil.copyfile(source, folder / "plan.json")
    shutil.copyfile(authority, folder / "authority.pem")
    return folder


def _page(plan: Plan, name: str, authority: Path, arguments: str, seconds: float) -> str:
    return READ.format(
        name=name,
        invitation=invitation(plan, name),
        digest=plan.digest,
        short=plan.digest[:12],
        fingerprint=fingerprint(authority),
        arguments=arguments,
        seconds=seconds,
        duration=duration(seconds * plan.training.rounds),
    )


def duration(seconds: float) -> str:
    """Return a duration in the unit that suits it, to a tenth: 200 seconds are ``3.3 minutes``."""
    length, unit = next((each for each in ((3600, "hours"), (60, "minutes")) if seconds >= 2 * each[0]), (1, "seconds"))
    return f"{round(seconds / length, 1):g} {unit}"


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 of a certificate, as OpenSSL prints it."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).fingerprint(hashes.SHA256()).hex(":").upper()


def port_of(server: str) -> int:
    """Return the port of an address.

    Raises
    ------
    UserError
        If it names none.
    """
    host, _, port = server.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < PORTS):
        raise UserError(f"Expected --server HOST:PORT, such as server.example:9443, found {server}.")
    return int(port)
