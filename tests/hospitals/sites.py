"""Small federations for tests: a plan, hospitals with simulated patients, and a line that is a function call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from decathlon_builder import CHANNELS, volume, write_dataset_json, write_volume

from zetadp.accounting.threat import MASKED_SUMS, Sums
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.hospitals.coordinator import Coordinator
from zetadp.hospitals.hospital import Hospital
from zetadp.hospitals.participant import Participant
from zetadp.hospitals.protocol import Answer, Refusal, Request
from zetadp.hospitals.roster import CURVE, Member, Roster
from zetadp.hospitals.server import SummingCoordinator
from zetadp.hospitals.settings import HospitalSettings
from zetadp.mri.decathlon import SEQUENCES
from zetadp.nn.models import NetworkSettings
from zetadp.training.assembly import Assembly
from zetadp.training.checkpoint import RunFiles
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.records import LabelledItems, items_of
from zetadp.training.settings import OptimiserSettings, Patience, Performance, TrainingSettings

SLICES, SIZE, SEED = 2, 8, 20260
OFTEN = Performance(evaluate_every=2, checkpoint_seconds=0.0, chunk=4)
"""One patient a pass, as exact noise takes them: so engines agree to the bit."""
QUICK = Patience(poll_seconds=0.001, round_seconds=0.05, give_up_seconds=0.3)
KEY = ec.generate_private_key(CURVE)
TINY = NetworkSettings(widths=(2, 4), convolutions=1, head="pooled", groups=2)


def make_plan(
    nodes: int = 3, rounds: int = 4, *, patients: int = 3, noise: str = "seeded", sigma: float = 1.5, **changes: object
) -> Plan:
    training = TrainingSettings(
        rounds=rounds,
        images_per_patient=4,
        optimiser=OptimiserSettings(learning_rate=0.01),
        clip=2.0,
        noise=noise,
    )
    planned = tuple(NodeConstants(f"node-{n + 1:02d}", patients + n % 2, 2, sigma) for n in range(nodes))
    settings = {
        "run": RunName("complex", "federated", Target(1000), 0),
        "cohort": "made-by-a-test",
        "network": TINY,
        "training": training,
        "task": {"name": "brain_sequences", "slices": SLICES, "size": SIZE, "decision": "image"},
        "nodes": planned,
    }
    return Plan(**{**settings, **changes})


def assembly(
    plan: Plan, start: dict[str, torch.Tensor] | None = None, sides: tuple[int, int] = (SIZE, SIZE)
) -> Assembly:
    """Return what a site makes of a plan."""
    return Assembly.of(plan, random_records(0, sides=sides), start)


def random_records(count: int, seed: int = 0, sides: tuple[int, int] = (SIZE, SIZE)) -> LabelledItems:
    generator = np.random.default_rng([SEED, seed])
    shape = (count, len(SEQUENCES) * SLICES, *sides)
    values = generator.standard_normal((2, *shape)).astype(np.float32)
    labels = torch.arange(len(SEQUENCES)).repeat_interleave(SLICES)
    return LabelledItems.stacked(torch.complex(*torch.from_numpy(values)).unsqueeze(2), labels)


def make_hospital(
    plan: Plan,
    place: int,
    folder: Path,
    sides: tuple[int, int] = (SIZE, SIZE),
    start=None,
    key: ec.EllipticCurvePrivateKey = KEY,
    records: LabelledItems | None = None,
    **changes: object,
) -> Hospital:
    """Return a hospital whose patients are random numbers, different at each place, unless it is given others."""
    node = plan.nodes[place]
    settings = {"plan": Path("unused"), "images": Path("unused"), "state": folder / node.name}
    settings |= {"simulation": True, "chunk": 4}
    own = HospitalSettings(name=node.name, **{**settings, **changes})
    patients = node.population // plan.units_of_a_person
    records = random_records(patients, place, sides) if records is None else records
    units = items_of([(i,) for i in range(patients)], len(records.inputs) // patients)
    if not plan.masked:
        return Hospital(Participant(own, plan, key), records, units, start)
    roster, keys = roster_of(plan)
    signing, agreement = keys[place]
    return Hospital(Participant(own, plan, signing, roster, agreement), records, units, start)


ROSTERS: dict[str, tuple[Roster, list[tuple[ec.EllipticCurvePrivateKey, ...]]]] = {}
"""For each plan with masked sums, its roster, and the signing and agreement key of each hospital."""


def roster_of(plan: Plan) -> tuple[Roster, list[tuple[ec.EllipticCurvePrivateKey, ...]]]:
    """Return the roster and the keys of a plan, the same ones for one plan in one process."""
    if plan.digest not in ROSTERS:
        keys = [(ec.generate_private_key(CURVE), ec.generate_private_key(CURVE)) for _ in plan.nodes]
        members = (Member.create(plan, node.name, *own[::-1]) for node, own in zip(plan.nodes, keys, strict=True))
        ROSTERS[plan.digest] = Roster(plan, tuple(members)), keys
    return ROSTERS[plan.digest]


def sums_plan(nodes: int = 3, *, colluding: int = 1, missing: int = 0, spare: int = 2, **changes: object) -> Plan:
    """Return a plan with masked sums."""
    return make_plan(nodes, threat=MASKED_SUMS, sums=Sums(colluding, missing, spare), **changes)


def hospitals(plan: Plan, folder: Path, **changes: object) -> list[Hospital]:
    """Return the hospitals of a plan."""
    return [make_hospital(plan, place, folder, **changes) for place in range(len(plan.nodes))]


def coordinator(
    plan: Plan,
    line: DirectLine,
    folder: Path,
    patience: Patience = QUICK,
    how: Performance = OFTEN,
    *,
    watched: LabelledItems | None = None,
    files: tuple[str, str] = ("ledger.jsonl", "checkpoint.safetensors"),
    **more: object,
) -> Coordinator:
    """Return a server with its files in a folder of their own."""
    places = RunFiles(*(folder / "server" / name for name in files))
    watched = random_records(2, 99) if watched is None else watched
    kind = partial(SummingCoordinator, roster=roster_of(plan)[0]) if plan.masked else Coordinator
    return kind(plan, patience, line, watched, places, performance=how, **more)


class DirectLine:
    """Hospitals in the same process; a filter may lose, delay or change what they send.

    What it changes is signed by the hospital, as by a node that misbehaves, unless ``signs`` is false.
    """

    def __init__(
        self,
        hospitals: Sequence[Hospital],
        tamper: Callable[[Request, Answer | Refusal], Answer | Refusal | None] | None = None,
        *,
        signs: bool = True,
    ) -> None:
        self.hospitals = {hospital.settings.name: hospital for hospital in hospitals}
        self.keys = {hospital.settings.name: hospital.participant.key.public_key() for hospital in hospitals}
        self.tamper, self.signs = tamper or (lambda _, reply: reply), signs
        self.requests: list[tuple[str, Request]] = []
        self.replies: list[Answer | Refusal] = []
        self.away: set[str] = set()

    def reachable(self) -> set[str]:
        return self.hospitals.keys() - self.away

    def identity(self, name: str) -> str:
        return f"key of {name}"

    def session(self, name: str) -> str:
        return "" if name in self.away else str(id(self.hospitals[name]))

    def is_pending(self, name: str) -> bool:
        return False

    def ask(self, name: str, request: Request) -> None:
        self.requests.append((name, request))
        hospital = self.hospitals[name]
        reply = self.tamper(request, hospital.exchange(request))
        if reply is not None:
            self.replies.append(hospital.sign(reply, request) if self.signs else reply)

    def collect(self) -> list[Answer | Refusal]:
        arrived, self.replies = self.replies, []
        return arrived


def write_hospital_folder(root: Path, patients: int, seed: int = 0, shape: tuple[int, int, int] = (16, 16, 4)) -> Path:
    """Write a folder in Decathlon layout with training patients only."""
    files = []
    for number in range(patients):
        name = f"imagesTr/PAT_{seed:02d}_{number + 1:03d}.nii.gz"
        write_volume(root / name, volume(shape, len(CHANNELS), np.random.default_rng([SEED, seed, number])))
        files.append(f"./{name}")
    write_dataset_json(root, files, [])
    rows = "".join(f"{file}\tP{number}\n" for number, file in enumerate(files))
    (root / "patient_key.tsv").write_text(f"file\tpatient\n{rows}")
    return root
