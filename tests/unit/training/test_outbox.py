"""Messages on disk; tests/unit/training/test_round.py has what a round does with them."""

from __future__ import annotations

import pytest
import torch
from ledger_builder import DECLARATION

from zetadp.account.ledger import Ledger
from zetadp.base.validation import UserError
from zetadp.training.outbox import Outbox

WEIGHTS = torch.arange(5.0)


@pytest.fixture
def outbox(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start(DECLARATION)
        yield Outbox(ledger, tmp_path / "messages")


def message(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 50, generator=torch.Generator().manual_seed(seed))


def test_what_is_kept_is_found_bit_for_bit_by_whoever_opens_the_folder_next(outbox):
    odd = message()
    odd[0, :4] = torch.tensor([-0.0, torch.inf, torch.nan, 1e-45])
    outbox.keep(7, WEIGHTS, odd)
    found = Outbox(outbox.ledger, outbox.folder).replay(7, WEIGHTS)
    assert torch.equal(found.view(torch.int32), odd.view(torch.int32))
    assert outbox.replay(6, WEIGHTS) is None


def test_messages_before_a_checkpoint_go_and_later_ones_stay(outbox):
    outbox.discard(3)  # nothing there yet
    for number in range(5):
        outbox.keep(number, WEIGHTS, message(number))
    assert outbox.size > 5 * message().nbytes
    outbox.discard(3)
    assert outbox.size == 0
    assert [outbox.answered(number, WEIGHTS) for number in range(5)] == [False, False, False, True, True]


def test_files_do_not_tell_when_a_round_was_computed(outbox):
    """A round takes longer the more patients it drew."""
    outbox.keep(0, WEIGHTS, message())
    assert {path.stat().st_mtime for path in (outbox.folder, *outbox.folder.iterdir())} == {0.0}


def test_a_damaged_message_is_refused_rather_than_drawn_again(outbox):
    outbox.keep(0, WEIGHTS, message())
    (path,) = outbox.folder.iterdir()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match="Cannot read"):
        outbox.replay(0, WEIGHTS)
