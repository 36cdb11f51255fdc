"""Preparation of a hospital: a plan in plain words, and a folder with settings and files to start with.

The files of the folder are those in ``zetadp/hospitals/kits``, with the values of the plan filled in. No folder holds
a private key. Each hospital makes its own, so no key is ever sent, and a lost folder reveals none.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from string import Template

from zetadp.account.risk import Risk
from zetadp.accounting import composition
from zetadp.base.epsilon import percent_up, rounded_up
from zetadp.base.storage import write_text
from zetadp.base.validation import UserError, counted, shown
from zetadp.hospitals.certificates import checked_server, fingerprint
from zetadp.hospitals.roster import Roster
from zetadp.hospitals.settings import HospitalSettings
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.promise import OWN_DELTA, promise_of
from zetadp.training.public import Public

TEMPLATES = Path(__file__).with_name("kits")
SERVER_UNIT = "zetadp-server.service"
UNIT_TEXTS = {
    "record": "The guarantee is for a record: one scan. A person with several scans is less protected than this.",
    "image": "The guarantee is for a single image. A person with several images is less protected than this.",
    "person": (
        "The guarantee is for a person with all scans. `patient_key.tsv` in the folder of images must say which scans "
        "belong to one person: `zetadp convert` writes it with `--patients` or `--patient-pattern`. If no person has "
        "two scans, write `one_record_per_patient: true` into `node.yaml`. With neither, the node does not start."
    ),
}
"""Description of each unit, for the page of a kit."""
OF_LOCAL_NOISE = {
    "terms": "plan.json",
    "agreement": "",
    "wait": "",
    "comparison": "Compare its hash with the table above.",
}
"""Parts of a kit's files for a plan with local noise."""
OF_MASKED_SUMS = {
    "terms": "roster.json    # the coordinator sends it when it has the member files of all",
    "agreement": (
        "\n   Also make an agreement key for this plan, and send `$name.member.json` to the coordinator:"
        "\n   `zetadp federation member plan.json $name --key $name.key`. Delete the `.agreement.key` next to your key "
        "\n   after the run: an attacker who obtains it later can remove the masks from recorded messages."
    ),
    "wait": "Wait for `roster.json` and put it into this folder.\n   ",
    "comparison": (
        "It also prints the hash of the roster. **Compare this hash with the other hospitals by telephone**, not only"
        "\n   with the coordinator: an attacker who exchanges a key unnoticed can read single messages."
    ),
}
"""Parts of a kit's files for a plan with masked sums."""
CANDIDATES = 10
"""Number of candidates in the sentence about the chance of a right guess."""


def write_kits(plan: Path, folder: Path, *, server: str, authority: Path) -> list[Path]:
    """Write a folder for each hospital of a plan, and the server's unit for systemd; return the folders in plan order.

    Parameters
    ----------
    plan
        File of the plan.
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
    agreed = Plan.read(plan)
    _, port = checked_server(server)
    values = {"server": server, "label": agreed.label, "digest": agreed.digest, "fingerprint": fingerprint(authority)}
    parts = OF_MASKED_SUMS if agreed.masked else OF_LOCAL_NOISE
    values["unit"] = agreed.protects
    values["who"] = UNIT_TEXTS.get(agreed.protects, UNIT_TEXTS["person"])
    if folder.exists():
        raise UserError(f"Expected a new folder, found {folder}. Name another: --output FOLDER")
    for name in (node.name for node in agreed.nodes):
        values_of_node = {"name": name, "epsilon": rounded_up(promise_of(agreed, name).person)}
        values_of_node["invitation"] = invitation(agreed, name)
        values_of_node |= {part: Template(text).substitute(name=name) for part, text in parts.items()}
        for template in TEMPLATES.iterdir():
            if template.name == SERVER_UNIT:
                continue
            file = f"zetadp-{name}.service" if template.suffix == ".service" else template.name
            text = Template(template.read_text(encoding="utf-8")).substitute(values | values_of_node)
            write_text(folder / name / file, text)
        HospitalSettings.read(folder / name / "node.yaml")
        shutil.copyfile(plan, folder / name / "plan.json")
        shutil.copyfile(authority, folder / name / "authority.pem")
    unit = Template((TEMPLATES / SERVER_UNIT).read_text(encoding="utf-8"))
    write_text(folder / SERVER_UNIT, unit.substitute(port=port))
    return [folder / node.name for node in agreed.nodes]


def invitation(plan: Plan, node: str, roster: Roster | None = None) -> str:
    """Return a plan in plain words.

    Parameters
    ----------
    plan
        The plan, with its noise.
    node
        The hospital.
    roster
        The roster of masked sums; None where there is none, or none yet.

    Raises
    ------
    UserError
        If the plan has no such node.
    """
    lines = [*_training(plan, roster), *_part(plan, plan.nodes[plan.position(node)])]
    return "\n".join(shown(line) for line in lines)


def _training(plan: Plan, roster: Roster | None) -> Iterator[str]:
    network, training = plan.network, plan.training
    yield f"Plan {plan.label} of cohort {plan.cohort or '(no name)'}"
    yield f"  hash:     {plan.digest}"
    yield f"  task:     {plan.task.get('name', 'none')}"
    trained = "" if network.trained == "all" else f", of which is trained: {network.trained}"
    start = "from a public network" if network.start == "public" else "from random weights"
    yield f"  network:  {network.family} on {network.domain}, {start}{trained}"
    yield f"  rounds:   {training.rounds}, with {counted(len(plan.nodes), 'node')}"
    if math.isfinite(plan.clip):
        yield f"  declared: {Public.of(plan).described(plan.protects)}"
    source = "a seed, which protects nobody: for simulations only" if training.seeded else "the operating system"
    yield f"  noise:    from {source}"
    if plan.sums is not None and plan.masked:
        relied = plan.sums.shares(len(plan.nodes))
        least, colluding = plan.sums.least_members(len(plan.nodes)), plan.sums.colluding
        yield f"  sums:     masks hide every message, so the server sees nothing but sums of at least {least} hospitals"
        yield f"            if at most {colluding} collude with the server, {relied} others are relied on for noise"
        yield f"  tries:    {plan.tries}, of which {plan.sums.spare} spare"
        yield f"  roster:   {'made when all hospitals have sent their keys' if roster is None else roster.digest}"


def _part(plan: Plan, node: NodeConstants) -> Iterator[str]:
    # This page uses the same delta as the node, unless the settings have another.
    promise = promise_of(plan, node.name, delta=min(plan.delta, OWN_DELTA))
    yield ""
    yield f"{node.name}"
    yield f"  takes part with exactly {counted(node.population, plan.protects)}"
    if node.expected == node.population:
        yield f"  all {plan.protects}s enter every round"
    else:
        yield f"  about {node.expected:g} of them enter a round; the node draws them and tells nobody which they were"
    yield "  sends sums of clipped contributions with noise, and lines of its ledger, which contain only public numbers"
    yield "  never sends images, features, losses, or how many were drawn"
    yield f"  costs:    {promise.terms}"
    if math.isfinite(promise.person):
        exposed = composition.grouped(plan.mechanisms(node.name), plan.units_of_a_person)
        share = Risk(plan.label, (), (exposed,), "holds").right_guesses(CANDIDATES, promise.delta)
        condition = "As long as masks hide single messages, someone" if plan.masked else "Someone"
        yield (
            f"            {condition} who has the data of {CANDIDATES} candidates, one of whom took part, names the "
            f"right one at most {percent_up(share)} of the time; {100 / CANDIDATES:g} % is guessing."
        )
    yield "            Each attempt adds this cost; `attempts` in node.yaml is the number of permitted attempts."
    if math.isfinite(promise.person):
        yield (
            f"  limit:    `cap: {rounded_up(promise.person)}` in node.yaml permits this run if it is the first, "
            "with one attempt"
        )
