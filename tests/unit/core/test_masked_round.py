"""Rounds of masked sums: what leaves a node has masks, and the model follows from the sum of whole numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from training_builder import TINY, Held, plain_gradient, plan_for, records, train_run

from zetadp.base.tensors import load_tensors
from zetadp.core.assembly import Assembly
from zetadp.core.outbox import Outbox, digest_of
from zetadp.core.plan import RunName
from zetadp.core.records import Node, checked_units
from zetadp.core.round import do_round
from zetadp.core.settings import OptimiserSettings, TrainingSettings
from zetadp.privacy.grid import from_grid
from zetadp.privacy.ledger import Ledger, read_ledger
from zetadp.privacy.masked import MaskedSum
from zetadp.privacy.threat import Sums

HELD = [Held("a", [[0]], 1, 1.0, 0.3), Held("b", [[1], [2]], 2, 2.0, 0.3), Held("c", [[3], [4], [5]], 3, 3.0, 0.3)]
"""Three nodes of one, two and three patients, all of whom take part."""
SETTINGS = TrainingSettings(4, images_per_patient=4, optimiser=OptimiserSettings(0.05, name="sgd"), clip=0.5)
OF_PLAN = {"threat": "masked_sums", "sums": Sums(colluding=1)}
RUN = RunName("complex", "sums", "inf", 3)


def assembled(noise="seeded", held=HELD):
    data = records(6)
    run = RUN if not held[0].noise_multiplier else replace(RUN, epsilon="900")
    plan = plan_for(run, TINY, replace(SETTINGS, noise=noise), held, **OF_PLAN)
    return plan, Assembly.of(plan, data), data


def nodes_of(parts, ledger):
    held = checked_units([own.units(4) for own in HELD], 24)
    return [Node(parts.mechanism(node.name, 7, ledger), own) for node, own in zip(parts.plan.nodes, held, strict=True)]


@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_a_part_of_a_sum_does_not_leave_without_masks_and_is_not_stored_or_hashed_without(tmp_path, noise):
    _, parts, data = assembled(noise)
    masks = torch.arange(parts.phase.message) * 2**40
    clear = []

    def mask(message):
        clear.append(message)
        return message + masks

    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start({})
        (node, *_) = nodes_of(parts, ledger)
        outbox = Outbox(ledger, tmp_path / "messages")
        with pytest.raises(ValueError, match="Expected masks"):
            do_round(parts.phase, [node], data, outbox, 0)
        assert not ledger.releases(0)
        sent, _ = do_round(parts.phase, [node], data, outbox, 0, mask)
        assert torch.equal(sent, clear[0] + masks)
        assert torch.equal(do_round(parts.phase, [node], data, outbox, 0, mask)[0], sent)
        assert len(clear) == 1, "the second message is the stored one"
        assert ledger.sent(0) == digest_of(sent) != digest_of(clear[0])
    (file,) = (tmp_path / "messages").iterdir()
    assert torch.equal(load_tensors(file)[0]["messages"], sent)
    hidden = {digest_of(clear[0]), digest_of(clear[0][0])}
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(digest.encode() in content for digest in hidden for content in written)
    assert not any(clear[0].numpy().tobytes()[:64] in content for content in written)


def test_the_sum_of_all_parts_with_their_masks_is_what_the_simulation_adds_up(tmp_path):
    _, parts, data = assembled()
    generator = torch.Generator().manual_seed(0)
    pair = [torch.randint(-(2**63), 2**63 - 1, (parts.phase.message,), generator=generator) for _ in range(3)]
    masks = [pair[0] + pair[1], pair[2] - pair[0], -pair[1] - pair[2]]
    with Ledger(tmp_path / "all.jsonl") as ledger:
        ledger.start({})
        simulated, _ = do_round(parts.phase, nodes_of(parts, ledger), data, Outbox(ledger), 0)
    total = torch.zeros(parts.phase.message, dtype=torch.int64)
    for place, own in enumerate(masks):
        with Ledger(tmp_path / f"{place}.jsonl") as ledger:
            ledger.start({})
            node = nodes_of(parts, ledger)[place]
            message, _ = do_round(parts.phase, [node], data, Outbox(ledger), 0, lambda part, own=own: part + own)
            total += message[0]
    assert torch.equal(simulated[0], total)
    assert parts.received(simulated).shape == (1, parts.phase.message)
    torch.testing.assert_close(parts.received(simulated)[0], from_grid(total, parts.grid, 6.0), rtol=0, atol=0)


def test_every_patient_weighs_the_same_whatever_the_size_of_the_hospital(tmp_path):
    """Without noise the step is that of all patients' clipped gradients, divided once by their number."""
    held = [replace(own, noise_multiplier=0.0) for own in HELD]
    paths = {"ledger_path": tmp_path / "ledger.jsonl", "checkpoint_path": tmp_path / "run.partial"}
    plan, parts, data = assembled(held=held)
    sent = []
    train_run(
        plan.run, TINY, SETTINGS, held, data, None, **paths, of_plan=OF_PLAN,
        after_round=lambda _, messages: sent.append(messages),
    )  # fmt: skip
    total = 0
    for patient in range(6):
        own = slice(4 * patient, 4 * patient + 4)
        gradient = plain_gradient(parts.phase.model, data.inputs[own], data.targets[own])
        total = total + gradient * min(1.0, SETTINGS.clip / float(gradient.norm()))
    torch.testing.assert_close(sent[0][0], total / 6, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("noise", ["seeded", "os"])
def test_a_training_ends_with_one_share_of_noise_of_each_node_in_every_step(tmp_path, noise):
    paths = {"ledger_path": tmp_path / "ledger.jsonl", "checkpoint_path": tmp_path / "run.partial"}
    sent = []
    loud = [replace(own, noise_multiplier=400.0) for own in HELD]
    train_run(
        replace(RUN, epsilon="8"), TINY, replace(SETTINGS, noise=noise), loud, records(6), None, **paths,
        of_plan=OF_PLAN, after_round=lambda _, messages: sent.append(messages),
    )  # fmt: skip
    assert all(message.shape[0] == 1 for message in sent)
    found = torch.cat(sent).double()
    wanted = 400.0 * SETTINGS.clip * 3**0.5 / 6
    assert found.std().item() == pytest.approx(wanted, rel=5 / (2 * found.numel()) ** 0.5)
    (attempt,) = read_ledger(paths["ledger_path"])
    assert {event.kind for event in attempt.events} == {MaskedSum(1.0, 400.0, 2)}
    assert len(attempt.events) == 12
