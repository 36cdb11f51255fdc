"""A folder for each hospital of a plan, and one for the server: what to read, settings, and files to start with.

The files are those in ``zetadp/federation/kits``, with the values of the plan filled in. No folder holds a private key.
Each hospital makes its own, so no key is ever sent, and a lost folder reveals none.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template

from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import write_text
from zetadp.base.validation import UserError
from zetadp.core.plan import Plan
from zetadp.core.promise import promise_of
from zetadp.federation.flower.certificates import checked_server, fingerprint
from zetadp.federation.flower.invitation import invitation
from zetadp.federation.flower.participant import SHORTEST
from zetadp.federation.flower.settings import HospitalSettings, ServerSettings

TEMPLATES = Path(__file__).parents[1] / "kits"
PAGE = "READ_ME_FIRST.md"
SERVER = "server"
IMAGES, TESTERS = "/data/Task01_BrainTumour", "/data/Task01_testers"


def write_kits(plan: Plan, source: Path, folder: Path, *, server: str, authority: Path) -> list[Path]:
    """Write a folder for each hospital of a plan and one for the server, and return the folders in this order.

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

    Raises
    ------
    UserError
        If the folder is there already, the certificate is none, or the address is none.
    """
    host, port = checked_server(server)
    names, seconds = [node.name for node in plan.nodes], HospitalSettings.answer_seconds
    values = {
        "server": server,
        "host": host,
        "port": port,
        "label": plan.label,
        "digest": plan.digest,
        "short": plan.digest[:SHORTEST],
        "fingerprint": fingerprint(authority),
        "rounds": plan.training.rounds,
        "seconds": f"{seconds:g}",
        "duration": duration(seconds * plan.training.rounds),
        "images": IMAGES,
        "testers": TESTERS,
        "nodes": ", ".join(names),
        "keys": "\n".join(f"  {name}: keys/{name}.pub.pem" for name in names),
        "public": ", ".join(f"`{name}.pub.pem`" for name in names),
        "roster": "roster: roster.json    # the coordinator sends it when it has the member files of all\n"
        * plan.masked,
        "roster_hash": " --roster-hash 'ITS FIRST 12 DIGITS'" * plan.masked,
        "members": " ".join(f"{name}.member.json" for name in names),
    }
    if folder.exists():
        raise UserError(f"Expected a new folder, found {folder}. Name another: --output FOLDER")
    for name in names:
        epsilon = rounded_up(promise_of(plan, name).person)
        own = {"name": name, "epsilon": epsilon, "invitation": invitation(plan, name)}
        _write(folder / name, name, "hospital", values | own)
        HospitalSettings.read(folder / name / "node.yaml")
    _write(folder / SERVER, SERVER, "server", values)
    (folder / SERVER / "keys").mkdir()
    ServerSettings.read(folder / SERVER / "server.yaml")
    kits = [folder / name for name in (*names, SERVER)]
    for kit in kits:
        shutil.copyfile(source, kit / "plan.json")
        shutil.copyfile(authority, kit / "authority.pem")
    return kits


def _write(kit: Path, name: str, kind: str, values: Mapping[str, object]) -> None:
    for template in sorted((TEMPLATES / kind).iterdir()):
        file = f"zetadp-{name}.service" if template.suffix == ".service" else template.name
        write_text(kit / file, Template(template.read_text(encoding="utf-8")).substitute(values))


def duration(seconds: float) -> str:
    """Return a duration in the unit that suits it, to a tenth: 200 seconds are ``3.3 minutes``."""
    length, unit = next((each for each in ((3600, "hours"), (60, "minutes")) if seconds >= 2 * each[0]), (1, "seconds"))
    return f"{round(seconds / length, 1):g} {unit}"
