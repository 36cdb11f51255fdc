"""What noise must be: as large as the ledger says, in every part, in every round, and never the same twice.

With noise that is too small, in the wrong place, used twice, or divided by what is private.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from training_builder import Held, train_run

from mutants.installing import (
    FALSE_ALARM,
    certain,
    correlation_limit,
    count_is_plausible,
    mutant,
    mutants,
    statistical,
    variance_limits,
)
from mutants.stub import CLIP, Messages, federation, random_records
from zetadp.accounting.events import Event
from zetadp.audit.suite import OF_A_ROUND, OF_DIFFERENCES
from zetadp.audit.trainings import Audited, audit
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.mechanism.release import NodeMechanism
from zetadp.nn.models import NetworkSettings
from zetadp.training.settings import OptimiserSettings, Performance, TrainingSettings

OVERWHELMING = 300.0
"""Beside noise of this multiple of the clip, four clipped gradients add less than 1e-6 to a variance or a cosine."""
PATIENTS, EXPECTED = 4, 2.0
ROUNDS, EXACT_ROUNDS = 20, 15
DEVIATIONS = (1, 2, 3.1)
"""Far out is beyond these; the last is off the round figure at which noise would be cut."""
PAIR = [[0, 1, 2, 3], [4, 5, 6, 7]]


def noise_is_as_stated(fed: Messages, messages: Tensor) -> None:
    """Compare messages that are all noise with what the ledger states: mean squares, and how many lie far out."""
    stated = {(event.round, event.node): event for event in fed.events()}
    standard = torch.empty(messages.shape, dtype=torch.float64)
    for number, node in _places(messages):
        event = stated[number, fed.names[node]]
        standard[number, node] = messages[number, node] * (event.expected / (event.noise_multiplier * event.clip))
    parts = fed.parts(standard)
    alarm = FALSE_ALARM / (len(parts) * (1 + len(DEVIATIONS) + len(_places(messages))))
    for name, values in parts.items():
        _mean_square_is_one(values, alarm, f"{name}, all rounds")
        # Exact noise is another each time: half the variance must not pass by chance.
        low, _ = variance_limits(values.numel(), alarm)
        missed = float(stats.chi2.sf(2 * low * values.numel(), values.numel()))
        assert missed < FALSE_ALARM, f"{name}: too few draws to see half the variance"
        for deviations in DEVIATIONS:
            count, chance = int((values.abs() > deviations).sum()), 2 * float(stats.norm.sf(deviations))
            plausible = count_is_plausible(count, values.numel(), chance, alarm)
            where = f"{name}: {count} of {values.numel()} beyond {deviations} standard deviations"
            assert plausible, f"noise is not normal in {where}"
        for number, node in _places(messages):
            _mean_square_is_one(values[number, node], alarm, f"{name}, round {number}, node {node}")


def _mean_square_is_one(values: Tensor, alarm: float, where: str) -> None:
    low, high = variance_limits(values.numel(), alarm)
    found = float(values.square().mean())
    assert low <= found <= high, f"noise has {found:.3f} of the stated variance in: {where}"


def _places(messages: Tensor) -> list[tuple[int, int]]:
    return [(number, node) for number in range(messages.shape[0]) for node in range(messages.shape[1])]


def independent(vectors: Tensor, alarm: float, what: str) -> None:
    """Compare the cosines of all pairs of rows with what independent normal vectors can show."""
    rows = torch.nn.functional.normalize(vectors.double(), dim=1)
    pairs = math.comb(len(rows), 2)
    limit = correlation_limit(rows.shape[1], alarm / pairs)
    found = float((rows @ rows.T - torch.eye(len(rows))).abs().max())
    assert found <= limit, f"{what} are correlated: {found:.3f}"


@statistical
def check_noise_is_as_stated(folder: Path) -> None:
    """Each part of each message of each round has the variance (sigma B / R)^2 that the ledger states.

    At clip 2 and with draws that fluctuate. Pooled over rounds a part has 260 x 20 x 2 = 10 400 draws, whose mean
    square strays by less than 8 % (alarm 8e-8); in one message it has 260, by less than half. Half the variance fails
    the former, a divisor that follows the draw (1, 3 or 4 instead of 2: variance x 4, x 0.44, x 0.25) the latter.

    Of 10 400 draws 20 lie beyond 3.1 standard deviations; none, as of noise that is cut off at three, has probability
    2e-9, below the alarm of 8e-8.
    """
    with federation(folder, PAIR, expected=EXPECTED, sigma=OVERWHELMING) as fed:
        noise_is_as_stated(fed, fed.rounds(ROUNDS))


@statistical
def check_noise_hides_the_low_bits(folder: Path) -> None:
    """Noise alone, from rounds that draw nobody, repeats few values: it is at least as fine as float32.

    31 200 normal float32 numbers coincide in about 31200^2/2 x 3e-8 = 15 pairs; 300 have probability below 1e-100. In
    half precision the numbers between 1/4 and 4 are 8192: nearly all repeat. A sum added to coarse noise shows between
    its steps.
    """
    with federation(folder, [[0], [1]], expected=0.02, sigma=1.0) as fed:
        values = fed.rounds(ROUNDS)
    repeated = values.numel() - len(set(values.flatten().tolist()))
    assert repeated < 300, f"{repeated} of {values.numel()} values of the noise repeat others"


@statistical
def check_exact_noise_is_never_the_same(folder: Path) -> None:
    """Exact noise from the operating system is independent across 4 rounds, 2 nodes, and the parts of a message."""
    with federation(folder, PAIR, expected=EXPECTED, sigma=OVERWHELMING, exact=True) as fed:
        parts = fed.parts(fed.rounds(4))
        independent(torch.cat([part.flatten(0, 1) for part in parts.values()]), FALSE_ALARM, "noises of one run")


@statistical
def check_trainings_share_no_noise(folder: Path) -> None:
    """Rounds and nodes of a training, and trainings of one seed that differ in epsilon, or in data, share no noise.

    Cosines of 3 x 2 x 2 messages of 260 coordinates at noise so large that gradients vanish: limit 0.35.
    """
    settings = TrainingSettings(rounds=2, optimiser=OptimiserSettings(1e-6), clip=2.0)
    plans = [
        Held(f"node-{place}", [[record] for record in own], PATIENTS, EXPECTED, OVERWHELMING)
        for place, own in enumerate(PAIR)
    ]
    run = RunName("linear", "federated", Target(1), 3)
    runs = [(run, 0), (replace(run, target=Target(8)), 0), (run, 1)]
    sent: list[Tensor] = []
    for number, (name, data_seed) in enumerate(runs):
        train_run(
            name,
            NetworkSettings("linear"),
            settings,
            plans,
            random_records(8, seed=data_seed),
            random_records(0),
            # Trainings on other data beside one ledger share no draw; elsewhere they do, and nobody is told apart.
            ledger_path=folder / f"{name.target}.jsonl",
            checkpoint_path=folder / f"{number}.partial",
            performance=Performance(checkpoint_seconds=1e6),
            after_round=lambda _, messages: sent.append(messages.clone()),
        )
    assert len(sent) == len(runs) * settings.rounds
    independent(torch.cat(sent), FALSE_ALARM, "noises of trainings")


@statistical
def check_a_repeated_round_shows_nothing_bare(folder: Path) -> None:
    """A round asked for again after a restart, on other data, is the same bytes or a paid release with other noise.

    Three restarts; cosines of messages of 780 coordinates stay below 0.2. Under the same noise the difference of two
    messages is the difference of two sums, and their cosine is 1.
    """
    messages = []
    for restart in range(4):
        data = random_records(8, seed=restart)
        with federation(
            folder, PAIR, expected=float(PATIENTS), sigma=OVERWHELMING, records=data, resumed=restart > 0
        ) as fed:
            messages.append(fed.round(0).flatten())
            paid = len(fed.attempt().releases())
    different = [a for n, a in enumerate(messages) if not any(torch.equal(a, b) for b in messages[:n])]
    assert paid >= 2 * len(different), f"{2 * len(different)} messages left the nodes, {paid} were paid for"
    if len(different) > 1:
        independent(torch.stack(different), FALSE_ALARM, "releases of one round")


@certain
def check_exact_messages_are_kept_before_they_are_sent(folder: Path) -> None:
    """What cannot be drawn again lies on disk when a round returns, and a restarted node sends those bytes.

    Then one release is paid for. A message that was lost from the disk is drawn anew and paid for.
    """
    with federation(folder, PAIR[:1], expected=EXPECTED, sigma=1.0, exact=True) as fed:
        sent = fed.round(0)
    with federation(folder, PAIR[:1], expected=EXPECTED, sigma=1.0, exact=True, resumed=True) as fed:
        again = fed.round(0)
        paid = len(fed.attempt().releases())
    assert torch.equal(sent, again), "a restarted node answered a round with other bytes"
    assert paid == 1
    for kept in (folder / "messages").iterdir():
        kept.unlink()
    with federation(folder, PAIR[:1], expected=EXPECTED, sigma=1.0, exact=True, resumed=True) as fed:
        anew = fed.round(0)
        paid = len(fed.attempt().releases())
    assert not torch.equal(sent, anew)
    assert paid == 2, f"two releases, {paid} paid for"


def _audited(audited: Audited) -> None:
    result = audit(replace(audited, clip=CLIP, confidence=1 - FALSE_ALARM))
    assert result.passed, f"{audited.name}: claimed {result.claim.epsilon:.2f}, shown at least {result.measured:.2f}"


@statistical
def check_audit_of_an_imaginary_canary(folder: Path) -> None:
    """A patient whose gradient is imaginary in all parameters; bare imaginary parts show it without error."""
    _audited(OF_A_ROUND[1])


@statistical
def check_audit_of_nodes(folder: Path) -> None:
    """The difference of nodes, which cancels what their noises share."""
    _audited(OF_DIFFERENCES[0])


@statistical
def check_audit_of_rounds(folder: Path) -> None:
    """The difference of two rounds, which cancels what their noises share; the patient is drawn in one of them."""
    _audited(OF_DIFFERENCES[1])


SEEDED = "zetadp.mechanism.release:NodeMechanism._privatised"
RELEASE = "zetadp.mechanism.release:NodeMechanism.release"
EXACT = "zetadp.mechanism.release:rounded_normal"


def mutant_of_noise(killer: Callable[[Path], None], **wrong: Callable[[NodeMechanism, Tensor], Tensor]) -> None:
    """Register what alters the shipped noise, as it stands after the division by R, and the check that kills it."""

    def privatised(alter: Callable[[NodeMechanism, Tensor], Tensor]) -> Callable[..., Tensor]:
        def found(original: Any, self: NodeMechanism, event: Event, clipped_sum: Tensor, again: int) -> Tensor:
            if self.event.noise_multiplier == 0 or self.seed is None:
                return torch.as_tensor(original(self, event, clipped_sum, again))
            noise = original(self, event, torch.zeros_like(clipped_sum), again)
            return clipped_sum / self.event.expected + alter(self, noise)

        return found

    mutants(SEEDED, killer, **{name: privatised(alter) for name, alter in wrong.items()})


def _deviation(mechanism: NodeMechanism) -> float:
    """Return the standard deviation that the noise should have after the division by R."""
    return mechanism.event.noise_multiplier * mechanism.event.clip / mechanism.event.expected


def _of_complex_normal(mechanism: NodeMechanism, noise: Tensor) -> Tensor:
    """Return PyTorch's complex normal of unit variance, at a place of the stream that only this draw has."""
    generator = torch.Generator().manual_seed(int(noise.abs().sum().view(torch.int32)))
    pairs = torch.randn(len(noise) // 2 + 1, dtype=torch.complex64, generator=generator)
    return _deviation(mechanism) * torch.view_as_real(pairs).flatten()[: len(noise)]


def every_second(noise: Tensor, value: Tensor | float) -> Tensor:
    """Replace imaginary parts: complex parameters come first in the stubs, and imaginary parts have odd places."""
    noise[1::2] = value
    return noise


mutant_of_noise(
    check_audit_of_an_imaginary_canary, noise_in_the_real_part_only=lambda mechanism, noise: every_second(noise, 0)
)
mutant_of_noise(
    check_noise_is_as_stated,
    complex_normal_of_half_variance=_of_complex_normal,
    noise_not_scaled_by_the_clip=lambda mechanism, noise: noise / mechanism.event.clip,
    noise_divided_twice=lambda mechanism, noise: noise / mechanism.event.expected,
    sigma_taken_for_the_variance=lambda mechanism, noise: noise / mechanism.event.noise_multiplier**0.5,
    noise_cut_off_at_three_deviations=lambda mechanism, noise: noise.clamp(
        -3 * _deviation(mechanism), 3 * _deviation(mechanism)
    ),
)
mutant_of_noise(
    check_noise_hides_the_low_bits,
    noise_in_half_precision=lambda mechanism, noise: (
        (noise / _deviation(mechanism)).half().float() * _deviation(mechanism)
    ),
)


@mutant(SEEDED, check_audit_of_rounds)
def noise_reused_between_rounds(original, self, event, clipped_sum, again):
    return original(self, replace(event, round=0), clipped_sum, again)


@mutant(SEEDED, check_audit_of_nodes)
def noise_seeded_alike_on_all_nodes(original, self, event, clipped_sum, again):
    first = copy.copy(self)
    first.node_index = 0
    return original(first, event, clipped_sum, again)


@mutant("zetadp.training.assembly:Assembly.mechanism", check_trainings_share_no_noise)
def nodes_built_with_one_stream(original, self, name, entropy, ledger):
    made = original(self, name, entropy, ledger)
    made.node_index = 0
    return made


@mutant("zetadp.training.holders:entropy_of", check_trainings_share_no_noise)
def trainings_seeded_by_their_seed_alone(original, plan, repeat=0):
    return plan.run.seed


@mutant("zetadp.training.holders:_repeat", check_trainings_share_no_noise)
def other_data_of_a_training_forgotten(original, plan, ledger, keyed):
    return 0


@mutant(SEEDED, check_a_repeated_round_shows_nothing_bare)
def replay_with_a_fresh_gradient_under_the_same_noise(original, self, event, clipped_sum, again):
    return original(self, event, clipped_sum, 0)


@mutant(RELEASE, check_noise_is_as_stated)
def divisor_is_the_realised_batch(original, self, draw, clipped_sum, *, again=0):
    return original(self, draw, clipped_sum, again=again) * self.event.expected / max(1, len(draw.members))


@mutant(EXACT, check_exact_noise_is_never_the_same)
def exact_noise_from_a_fixed_seed(original, count, scale, *more, **named):
    return np.rint(float(scale) * np.random.default_rng(0).standard_normal(count)).astype(np.int64)


@mutant("zetadp.training.outbox:Outbox.keep", check_exact_messages_are_kept_before_they_are_sent)
def message_sent_before_it_is_kept(original, self, number, weights, messages):
    folder, self.folder = self.folder, None
    original(self, number, weights, messages)
    self.folder = folder
