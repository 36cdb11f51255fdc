"""What a hospital gets before it takes part: a plan in plain words, and a folder with settings and files to start with.

The files of the folder are those in ``zetadp/federation/kits``, with the values of the plan filled in. No folder holds
a private key. Each hospital makes its own, so no key is ever sent, and a lost folder reveals none.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template

from zetadp.base.epsilon import rounded_up
from zetadp.base.storage import write_text
from zetadp.base.validation import UserError, shown
from zetadp.core.plan import NodeConstants, Plan
from zetadp.core.promise import OWN_DELTA, promise_of
from zetadp.federation.certificates import checked_server, fingerprint
from zetadp.federation.masks import Roster
from zetadp.federation.participant import SHORTEST
from zetadp.federation.settings import HospitalSettings, ServerSettings
from zetadp.nn.settings import DESCENT, MIXED_ROWS
from zetadp.privacy import accounting
from zetadp.privacy.risk import Risk, percent_up

TEMPLATES = Path(__file__).with_name("kits")
PAGE = "READ_ME_FIRST.md"
SERVER = "server"
TEN = 10
"""Number of candidates in the sentence about the chance of a right guess."""
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


def invitation(plan: Plan, node: str, roster: Roster | None = None) -> str:
    """Return a plan in plain words.

    Parameters
    ----------
    plan
        The plan, with its noise.
    node
        The hospital whose part is told.
    roster
        The roster of masked sums; None where there is none, or none yet.

    Raises
    ------
    UserError
        If the plan has no such node.
    """
    lines = [*_training(plan, roster), *_part(plan, plan.nodes[plan.place(node)])]
    return "\n".join(shown(line) for line in lines)


def _training(plan: Plan, roster: Roster | None) -> Iterator[str]:
    net, how = plan.network, plan.training
    yield f"Plan {plan.label} of cohort {plan.cohort or '(no name)'}"
    yield f"  hash:     {plan.digest}"
    yield f"  task:     {plan.task.get('name', 'none')}"
    trained = "" if net.trained == "all" else f", of which is trained: {net.trained}"
    start = "from a public network" if net.start == "public" else "from random weights"
    yield f"  network:  {net.family} on {net.domain}, {start}{trained}"
    yield f"  rounds:   {how.rounds}, with {len(plan.nodes)} nodes"
    yield f"  noise:    {_source(how.noise)}"
    if plan.sums is not None and plan.masked:
        relied = plan.sums.shares(len(plan.nodes))
        least, colluding = plan.sums.least_members(len(plan.nodes)), plan.sums.colluding
        yield f"  sums:     masks hide every message, so the server sees nothing but sums of at least {least} hospitals"
        yield f"            if at most {colluding} collude with the server, {relied} others are relied on for noise"
        yield f"  tries:    {plan.tries}, of which {plan.sums.spare} spare"
        yield f"  roster:   {'made when all hospitals have sent their keys' if roster is None else roster.digest}"


def _source(noise: str) -> str:
    return "from the operating system" if noise == "os" else "from a seed, which protects nobody: for simulations only"


def _part(plan: Plan, node: NodeConstants) -> Iterator[str]:
    # The reader of this page judges as the node does, unless its settings say otherwise.
    promise = promise_of(plan, node.name, delta=min(plan.delta, OWN_DELTA))
    yield ""
    yield f"{node.name}"
    yield f"  takes part with {node.population} {plan.unit}s, no more and no fewer"
    if node.expected == node.population:
        yield f"  all {plan.unit}s enter every round"
    else:
        yield f"  about {node.expected:g} of them enter a round; the node draws them and tells nobody who they were"
    yield f"  sends {_what(plan)}, and lines of its ledger, which hold public numbers alone"
    yield "  never sends images, features, losses, or how many were drawn"
    yield f"  costs:    {promise}"
    if math.isfinite(promise.person):
        exposed = accounting.grouped(plan.mechanisms(node.name), plan.units_of_a_person or 1)
        share = Risk(plan.label, (), (exposed,), "holds").right_guesses(TEN, promise.delta)
        yield (
            f"            Someone who has the data of {TEN} candidates, one of whom took part, names the right one at "
            f"most {percent_up(share)} of the time; {100 / TEN:g} % is guessing."
        )
    yield "            A training that is begun again costs as much again; `attempts` in node.yaml sets how often."
    if math.isfinite(promise.person):
        yield f"  agree by `cap: {rounded_up(promise.person)}` in node.yaml: the node refuses what costs more"


def _what(plan: Plan) -> str:
    how = plan.training
    if how.estimator == MIXED_ROWS:
        return f"{how.mixing.rows if how.mixing else 0} rows, each a noisy mean of a few {plan.unit}s, once"
    if how.estimator == DESCENT:
        return "in each round one sum of clipped gradients with noise"
    return "once one sum of clipped statistics with noise"
