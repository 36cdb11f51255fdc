"""Training one model under one guarantee: rounds, progress, checkpoints.

The core knows nothing of MRI or of Snakemake: it takes records of patients, a network and the privacy settings.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import shutil
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from zetadp.checkpoint import Checkpoint, tensors_digest
from zetadp.epsilon import UNCLIPPED
from zetadp.estimators import CLOSED_FORMS, DESCENT
from zetadp.evaluation import accuracy_and_loss
from zetadp.federation.messages import MessageStore
from zetadp.federation.node import Node, Records, check_images_per_patient
from zetadp.federation.server import OptimiserSettings, Server
from zetadp.federation.simulation import passes_for, simulate_round
from zetadp.federation.solver import Solver
from zetadp.nn.closed_form import ClosedForm, closed_form
from zetadp.nn.low_rank import updates
from zetadp.nn.models import HeadClassifier, NetworkSettings, build
from zetadp.nn.parameters import Layout
from zetadp.precision import set_tf32
from zetadp.privacy.exact_mechanism import ExactSampledGaussian
from zetadp.privacy.grid import Grid
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.mechanism import SampledGaussian
from zetadp.privacy.pass_size import images_in_a_pass
from zetadp.privacy.schedule import DECAYS, NoiseSchedule
from zetadp.privacy.secret import Secret
from zetadp.randomness import Purpose, stream
from zetadp.storage import remove_leftovers
from zetadp.validation import UserError, in_range, one_of, positive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from zetadp.privacy.account import Permission

logger = logging.getLogger(__name__)

ROUGH_SECONDS = 600.0
"""Seconds between two lines of the log where times must not show how long rounds took."""
KEPT_BYTES = 2**28
"""Messages that are kept before a checkpoint makes them unneeded, about."""


@dataclass(frozen=True)
class RunName:
    """What tells one run of the grid from another.

    Attributes
    ----------
    network, arm
        Names of sections of the configuration.
    epsilon
        Target as text: a number, ``inf`` (clips, adds no noise) or ``unclipped`` (neither).
    seed
        Seed of the starting weights and, with all that defines the run, of sampling and noise.
    """

    network: str
    arm: str
    epsilon: str
    seed: int

    def __str__(self) -> str:
        return f"{self.network} {self.arm} eps-{self.epsilon} seed-{self.seed}"


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained.

    Attributes
    ----------
    rounds
        Declared number of rounds, one optimiser step each. The guarantee is computed for it before training.
    images_per_patient
        Images that make one patient's gradient in a round, equally many of every class.
    optimiser
        The server's optimiser.
    clip
        The clipping norm B.
    evaluate_every
        Rounds between two looks at the validation patients.
    checkpoint_seconds
        Seconds between two checkpoints. With noise from the operating system the messages of every round since the
        last one are kept as well, since they cannot be computed again.
    chunk
        Images in one pass at most; changes memory and speed, neither the result (to rounding) nor the guarantee. By
        default as many as hold half a GiB (`zetadp.privacy.pass_size`). With noise from the operating system a pass is
        one patient.
    noise
        ``seeded``: sampling and noise are reproducible and protect nobody. ``os``: exact integer noise and sampling
        from the operating system's generator. Only the starting weights then come from the seed.
    estimator
        ``descent``; or, for a head, one of `zetadp.estimators.CLOSED_FORMS`, which has one round and no optimiser.
    feature_norm
        Of an estimator in closed form, the norm that each image's features are clipped to, in units of their root mean
        square on public images.
    tf32
        Let a GPU round the factors of products in convolutions to 10 bits, which is faster (`zetadp.precision`).
    noise_decay
        Noise of the last rounds relative to that of the first, as in `schedule.NoiseSchedule`; one keeps it constant.
    """

    rounds: int
    images_per_patient: int = 4
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    clip: float = 1.0
    evaluate_every: int = 20
    checkpoint_seconds: float = 30.0
    chunk: int | None = None
    noise: str = "seeded"
    estimator: str = DESCENT
    feature_norm: float = 0.8
    tf32: bool = False
    noise_decay: float = 1.0

    @classmethod
    def from_section(cls, section: Mapping[str, Any], *, rounds: int, noise: str) -> TrainingSettings:
        """Return the settings that a section of a configuration gives, in which the optimiser's stand among the others.

        Parameters
        ----------
        section
            Keys of `OptimiserSettings` and of this class; the optimiser's name is called ``optimiser``.
        rounds, noise
            What other sections say.
        """
        of_optimiser = {entry.name for entry in fields(OptimiserSettings)} - {"name"}
        optimiser = {key: section[key] for key in of_optimiser & section.keys()}
        if "optimiser" in section:
            optimiser["name"] = section["optimiser"]
        rest = {key: value for key, value in section.items() if key not in {*of_optimiser, "optimiser"}}
        return cls(rounds=rounds, noise=noise, optimiser=OptimiserSettings(**optimiser), **rest)

    def __post_init__(self) -> None:
        """Check every setting."""
        positive(rounds=self.rounds, images_per_patient=self.images_per_patient, clip=self.clip)
        positive(evaluate_every=self.evaluate_every, chunk=1 if self.chunk is None else self.chunk)
        one_of(("seeded", "os"), noise=self.noise)
        in_range(0, 1e9, checkpoint_seconds=self.checkpoint_seconds)
        positive(feature_norm=self.feature_norm)
        one_of((DESCENT, *CLOSED_FORMS), estimator=self.estimator)
        if self.estimator != DESCENT and self.rounds != 1:
            msg = f"Expected one round for estimator {self.estimator}, found {self.rounds}. Set rounds to 1."
            raise UserError(msg)
        in_range(*DECAYS, noise_decay=self.noise_decay)

    @property
    def schedule(self) -> NoiseSchedule:
        """How noise changes over the rounds, the same at every node."""
        return NoiseSchedule(self.rounds, self.noise_decay)

    def stated(self) -> dict[str, Any]:
        """Return what ledgers say of the settings: all that changes what is trained, as JSON."""
        content = asdict(self)
        # How often one looks or saves, and how much fits in memory, does not change what is trained.
        for key in ("evaluate_every", "checkpoint_seconds", "chunk", "noise"):
            content.pop(key)
        # Descents keep the header, and with it the draws, that they had before there were other estimators.
        for key in ("estimator", "feature_norm") if self.estimator == DESCENT else ("optimiser",):
            content.pop(key)
        if not self.tf32:
            content.pop("tf32")
        if self.noise_decay == 1:
            content.pop("noise_decay")  # as in the ledgers of versions that knew constant noise only
        return content


@dataclass(frozen=True)
class NodePlan:
    """A node before training: who it holds and how much noise it adds.

    Attributes
    ----------
    name
        Name of the node.
    patients
        For each of its training patients, the positions of the patient's records.
    population
        Declared number of its training patients, N.
    expected
        Expected patients in a round, R.
    noise_multiplier
        sigma, of the first rounds where it changes; zero for runs without noise.
    images
        None where patients are drawn and hidden. Where it is single images, the position of each in its record; the
        other attributes then count images, and ``patients`` holds the one record of each.
    """

    name: str
    patients: Sequence[Sequence[int]]
    population: int
    expected: float
    noise_multiplier: float
    images: Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Refuse a node that does not hold what it declares."""
        if len(self.patients) != self.population:
            msg = (
                f"Expected {self.population} training patients at {self.name}, as declared, found {len(self.patients)}."
            )
            raise UserError(msg)


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes
    ----------
    model
        The network with its final weights; never the best of several.
    history
        Columns ``round``, ``seconds``, ``learning_rate``, ``validation_accuracy``, ``validation_loss``; the last two
        are NaN without validation patients. Seconds are NaN with noise from the operating system: how long a round
        took tells how many patients were drawn.
    ledger_head
        Head of the ledger's chain at the end: a ledger without it has lost lines.
    not_finite
        Patient gradients that were not finite and contributed zero; known in a simulation only, and None where noise
        protects real patients.
    """

    model: nn.Module
    history: pd.DataFrame
    ledger_head: str
    not_finite: int | None


def train(
    run: RunName,
    network: NetworkSettings,
    settings: TrainingSettings,
    nodes: Sequence[NodePlan],
    records: Records,
    validation: Records,
    *,
    ledger_path: Path,
    checkpoint_path: Path,
    start: Mapping[str, Tensor] | None = None,
    context: Mapping[str, Any] | None = None,
    after_round: Callable[[int, Tensor], None] | None = None,
    permission: Permission | None = None,
) -> Trained:
    """Train a network across nodes, by zeta-DP-SGD or in closed form, from the start or from its checkpoint.

    Parameters
    ----------
    run
        Name of the run, which also seeds it.
    network, settings
        What is trained and how.
    nodes
        The holders of training patients; one node is the central arm.
    records
        Images of the training patients.
    validation
        Images of held-out patients, watched only: the last model is taken, not the best. There may be none.
    ledger_path
        The run's ledger, which outlives failed and repeated jobs.
    checkpoint_path
        Where an interrupted training is kept, with its messages in a folder beside it; `finish` removes both.
    start
        Starting weights, which must be public: a function of no private patient. None draws them from the seed.
        Low-rank updates of these weights need not be among them: they are drawn, and change nothing at first.
    context
        More facts for the ledger's header and for the check whether a checkpoint belongs to this run.
    after_round
        Called after each round with the number of rounds done and what the nodes sent, shape (node, dimension):
        everything that left them.
    permission
        Whether the run may be begun from its first round again; None sets no limit.

    Raises
    ------
    UserError
        If settings and records disagree, if the ledger has lost lines since the checkpoint was written, if the secret
        beside it is another, if another attempt is not permitted, or if the disk is full or read-only; the last
        checkpoint is then kept.
    """
    device = records.images.device
    set_tf32(convolutions=settings.tf32)
    check_images_per_patient(settings.images_per_patient, records.known_labels)
    model = build(network, records.classes, records.images.shape[-1], stream(run.seed, Purpose.WEIGHTS)).to(device)
    if start is not None:
        model.load_state_dict({**updates(model), **start})
        context = {**(context or {}), "start": tensors_digest(start)}
    layout = Layout.of(model)
    statistic = _statistic(run, settings, model, records)
    weights = layout.flatten(dict(model.named_parameters())).detach()
    server: Server | Solver
    if statistic is None:
        server = Server(weights, settings.optimiser, settings.rounds)
    else:
        server = Solver(weights, layout, statistic, deviation=_deviation(settings, nodes), public=start is not None)
    _attach(model, layout, server)
    grid = _grid(settings, nodes, layout.dimension if statistic is None else statistic.dimension)
    header = _header(run, network, settings, nodes, {**(context or {}), "grid_bits": grid.bits if grid else None})
    # Runs that differ in anything, the data included, share no draw: under common noise two gradients would show their
    # difference bare, and their guarantees would not compose as independent. The same run, made again, releases the
    # same bytes. The fingerprint is a function of the patients' data: what is written of it is keyed.
    fingerprint = _fingerprint(header, nodes, records)
    entropy = int(fingerprint[:32], 16) if settings.noise == "seeded" else secrets.randbits(128)
    secret = Secret.of(ledger_path.parent)
    keyed = secret.tag(fingerprint)
    clip = float("inf") if run.epsilon == UNCLIPPED else settings.clip

    with Ledger(ledger_path) as ledger:
        first, history, not_finite = _begin(
            checkpoint_path, ledger, header, (secret.name, keyed), server, device, permission
        )
        holders = [
            Node(
                _mechanism(plan, place, clip=clip, grid=grid, seed=entropy, ledger=ledger, schedule=settings.schedule),
                plan.patients,
                plan.images,
            )
            for place, plan in enumerate(nodes)
        ]
        alone = any(plan.images is not None for plan in nodes)
        # What cannot be computed again must be kept: a repeated round would be a second release.
        store = MessageStore(_messages_of(checkpoint_path), ledger.identity) if grid is not None else None
        together = 1 if alone else settings.images_per_patient
        chunk = settings.chunk or images_in_a_pass(model, layout, records.images, together)
        how = {"images_per_patient": together, "chunk": chunk}
        passes = passes_for(holders, device, **how)
        protected = settings.noise == "os"
        progress = _Progress(run, first, settings.rounds, timed=not protected)
        seconds_before = float(history["seconds"].max()) if len(history) else 0.0

        def save(done: int) -> None:
            state = server.state()
            Checkpoint(done, keyed, state, history, ledger.head, not_finite, secret.name).save(checkpoint_path)
            if store is not None:
                store.discard(done)

        if first == 0:
            save(0)  # so that a training that is killed early goes on, and is not a second attempt
        saved = time.monotonic()
        for number in range(first, settings.rounds):
            messages, bad = simulate_round(
                holders,
                model,
                layout,
                records,
                ledger,
                number,
                store=store,
                statistic=statistic,
                passes=passes,
                **how,
            )
            not_finite += 0 if protected else bad
            server.step(messages, number)
            done = number + 1
            if done % settings.evaluate_every == 0 or done == settings.rounds:
                accuracy, loss = accuracy_and_loss(model, validation)
                history.loc[len(history)] = [
                    done,
                    math.nan if protected else seconds_before + progress.seconds(),
                    server.learning_rate(number),
                    accuracy,
                    loss,
                ]
                progress.accuracy = accuracy
            progress.report(done)
            due = time.monotonic() - saved >= settings.checkpoint_seconds
            if (due or (store is not None and store.size > KEPT_BYTES)) and done < settings.rounds:
                save(done)
                saved = time.monotonic()
            if after_round is not None:
                after_round(done, messages)
        head = ledger.head
    if not_finite:
        logger.warning("%s: %d patient gradients were not finite and contributed zero", run, not_finite)
    return Trained(
        model=model,
        history=history.astype({"round": int}),
        ledger_head=head,
        not_finite=None if protected else not_finite,
    )


def _grid(settings: TrainingSettings, nodes: Sequence[NodePlan], dimension: int) -> Grid | None:
    """Return the grid of integer sums that all nodes of a run share, where their noise is exact."""
    least = min(plan.noise_multiplier for plan in nodes)
    if settings.noise != "os" or all(plan.noise_multiplier == 0 for plan in nodes):
        return None
    if least == 0:
        msg = "Expected noise at all nodes or at none where it comes from the operating system, found some without."
        raise ValueError(msg)
    schedule = settings.schedule
    return Grid.choose(
        settings.clip,
        noise_multiplier=schedule.least(least),
        most_noise=schedule.most(max(plan.noise_multiplier for plan in nodes)),
        population=max(plan.population for plan in nodes),
        dimension=dimension,
    )


def _statistic(run: RunName, settings: TrainingSettings, model: nn.Module, records: Records) -> ClosedForm | None:
    """Return what patients contribute in place of gradients, None for descent."""
    if settings.estimator == DESCENT:
        return None
    if not isinstance(model, HeadClassifier):
        msg = f"Expected estimator {DESCENT} for a network that is not of family head, found {settings.estimator}."
        raise UserError(msg)
    counts = torch.bincount(records.labels, minlength=records.classes)
    if settings.images_per_patient < len(records.labels):
        counts = torch.ones_like(counts)  # equally many of every class are chosen
    return closed_form(
        settings.estimator,
        components=model.components,
        shares=tuple((counts / counts.sum()).tolist()),
        norm=settings.feature_norm,
        bound=settings.clip,
        clipped=run.epsilon != UNCLIPPED,
    )


def _deviation(settings: TrainingSettings, nodes: Sequence[NodePlan]) -> float:
    """Return the standard deviation of the noise in each coordinate of the mean of all nodes' messages."""
    return settings.clip * math.hypot(*(plan.noise_multiplier / plan.expected for plan in nodes)) / len(nodes)


def _mechanism(
    plan: NodePlan,
    place: int,
    *,
    clip: float,
    grid: Grid | None,
    seed: int,
    ledger: Ledger,
    schedule: NoiseSchedule,
) -> SampledGaussian:
    """Return a node's mechanism: exact where the operating system gives the noise, seeded otherwise."""
    constants: dict[str, Any] = {
        "population": plan.population,
        "expected": plan.expected,
        "noise_multiplier": plan.noise_multiplier,
        "clip": clip,
        "ledger": ledger,
        "schedule": schedule,
    }
    if grid is not None:
        return ExactSampledGaussian(plan.name, place, grid=grid, **constants)
    return SampledGaussian(plan.name, place, seed=seed, **constants)


def finish(checkpoint_path: Path) -> None:
    """Remove the checkpoint and the kept messages of a run whose outputs are all written."""
    # The checkpoint goes first: messages without one are never read, a checkpoint without its messages would be.
    checkpoint_path.unlink(missing_ok=True)
    remove_leftovers(checkpoint_path)  # of a job that died while it wrote one
    _remove_messages(checkpoint_path)


def _messages_of(checkpoint_path: Path) -> Path:
    return checkpoint_path.with_name(f"{checkpoint_path.stem}.messages")


def _remove_messages(checkpoint_path: Path) -> None:
    shutil.rmtree(_messages_of(checkpoint_path), ignore_errors=True)


def _fingerprint(header: Mapping[str, Any], nodes: Sequence[NodePlan], records: Records) -> str:
    """Return a hash of all that defines a run: its public constants, who is where, and every image."""
    held: list[Any] = [[list(map(int, own)) for own in plan.patients] for plan in nodes]
    held += [list(map(int, plan.images)) for plan in nodes if plan.images is not None]
    digest = hashlib.sha256(json.dumps([header, held], sort_keys=True).encode())
    for tensor in (records.images, records.labels):
        digest.update(tensor.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _attach(model: nn.Module, layout: Layout, server: Server | Solver) -> None:
    """Make the network's parameters views of the server's flat weights, so that a step needs no copy."""
    for name, view in layout.unflatten(server.weights.data).items():
        owner, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(owner), leaf, torch.nn.Parameter(view))


def _header(
    run: RunName,
    network: NetworkSettings,
    settings: TrainingSettings,
    nodes: Sequence[NodePlan],
    context: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what defines a run, as the ledger's header shows it: public constants only."""
    plans = [
        {"name": n.name, "population": n.population, "expected": n.expected, "noise_multiplier": n.noise_multiplier}
        for n in nodes
    ]
    header: dict[str, Any] = {
        "run": asdict(run),
        "network": network.described(),
        "training": settings.stated(),
        "nodes": plans,
        "noise": settings.noise,
    }
    if any(plan.images is not None for plan in nodes):
        # Whoever reads the ledger must know that a patient stands behind many of the units that it counts.
        owned = Counter((plan.name, own[0]) for plan in nodes for own in plan.patients)
        header |= {"unit": "image", "images_of_a_patient": max(owned.values())}
    if clash := header.keys() & context.keys():
        msg = f"Expected context with other keys than the header's own, found {sorted(clash)}."
        raise ValueError(msg)
    return {**header, **context}


def _begin(
    path: Path,
    ledger: Ledger,
    header: dict[str, Any],
    fingerprint: tuple[str, str],
    server: Server | Solver,
    device: torch.device,
    permission: Permission | None,
) -> tuple[int, pd.DataFrame, int]:
    """Continue from the run's checkpoint if there is one, else start a new attempt in the ledger.

    Returns
    -------
    done, history, not_finite
        Rounds done, the training history so far, and how many gradients were not finite.
    """
    history = pd.DataFrame(
        {
            name: pd.Series(dtype=float)
            for name in ("round", "seconds", "learning_rate", "validation_accuracy", "validation_loss")
        }
    )
    if path.exists():
        checkpoint = Checkpoint.load(path, device)
        _check_checkpoint(path, checkpoint, ledger, fingerprint[0])
        if ledger.knows(checkpoint.ledger_head) and checkpoint.fingerprint == fingerprint[1]:
            server.load(checkpoint.state)
            ledger.resume(checkpoint.round)
            logger.info("continuing after round %d of an interrupted training", checkpoint.round)
            rows = checkpoint.history if len(checkpoint.history) else history
            return checkpoint.round, rows.astype(history.dtypes.to_dict()), checkpoint.not_finite
        logger.info("the checkpoint %s belongs to another training; starting anew", path)
    if permission is not None:
        permission.check(ledger, header)
    ledger.start(header)
    _remove_messages(path)
    return 0, history, 0


def _check_checkpoint(path: Path, checkpoint: Checkpoint, ledger: Ledger, secret: str) -> None:
    """Refuse a checkpoint that names lines or a secret that are lost: a new start would release everything again."""
    if not (ledger.knows(checkpoint.ledger_head) or ledger.knew(checkpoint.ledger_head)):
        msg = (
            f"The ledger {ledger.path} has lost lines: it does not hold what it held when the checkpoint {path} was "
            f"written, after round {checkpoint.round}. Restore the ledger: without it no true epsilon can be stated. "
            "To start over, delete the checkpoint."
        )
        raise UserError(msg)
    if checkpoint.secret != secret:
        msg = (
            f"The checkpoint {path} was written with another secret than the one in {ledger.path.parent}, so nobody "
            "can tell whether it belongs to this training. Restore the secret from a backup. To start over, delete the "
            "checkpoint: what was released before stays counted."
        )
        raise UserError(msg)


class _Progress:
    """Log lines with speed, held-out accuracy and time left: at most one in ten seconds.

    Where noise protects real patients, how long rounds took must not show, since it tells how many patients were drawn:
    lines then come by the clock, every ten minutes, and name the share of the rounds in steps of 5 %.
    """

    def __init__(self, run: RunName, start: int, rounds: int, *, timed: bool) -> None:
        self.run, self.start, self.rounds, self.timed = run, start, rounds, timed
        self.begun = time.monotonic()
        self.reported = self.begun
        self.accuracy = float("nan")

    def seconds(self) -> float:
        """Return the seconds since training began or went on."""
        return time.monotonic() - self.begun

    def report(self, done: int) -> None:
        """Log where the training stands."""
        now = time.monotonic()
        watched = "" if math.isnan(self.accuracy) else f", held-out accuracy {100 * self.accuracy:.1f} %"
        if not self.timed:
            if now - self.reported >= ROUGH_SECONDS and done < self.rounds:
                self.reported = now
                logger.info("%s: about %d %%%s", self.run, 5 * (20 * done // self.rounds), watched)
            return
        if now - self.reported < 10 and done < self.rounds:
            return
        self.reported = now
        speed = (done - self.start) / max(now - self.begun, 1e-9)
        left = (self.rounds - done) / speed
        logger.info(
            "%s: round %d of %d, %.1f rounds/s%s, %s left",
            self.run,
            done,
            self.rounds,
            speed,
            watched,
            f"{left / 60:.0f} min" if left >= 120 else f"{left:.0f} s",
        )
