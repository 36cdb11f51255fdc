from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import zetadp.base.storage
from zetadp.base.validation import UserError
from zetadp.core.messages import MessageStore


@pytest.fixture
def store(tmp_path):
    return MessageStore(tmp_path / "messages", "attempt 1")


def message(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 50, generator=torch.Generator().manual_seed(seed))


def test_what_is_kept_is_found_bit_for_bit_by_whoever_opens_the_store_next(store):
    odd = message()
    odd[0, :4] = torch.tensor([-0.0, torch.inf, torch.nan, 1e-45])
    store.keep(7, "weights", odd, "head")
    kept = MessageStore(store.folder, "attempt 1").find(7, "weights")
    assert kept.ledger_head == "head"
    found = kept.messages
    assert torch.equal(found.view(torch.int32), odd.view(torch.int32))
    assert store.find(6, "weights") is None


def test_a_request_with_other_weights_is_refused(store):
    store.keep(0, "weights", message(), "head")
    with pytest.raises(UserError, match=r"Round 0 was answered already, for other weights .*ledger"):
        store.find(0, "other weights")
    assert torch.equal(store.find(0, "weights").messages, message())


def test_messages_of_another_attempt_are_not_found_and_give_way(store):
    store.keep(0, "weights", message(), "head")
    other = MessageStore(store.folder, "attempt 2")
    assert other.find(0, "weights") is None
    other.keep(0, "other weights", message(1), "head")
    assert torch.equal(other.find(0, "other weights").messages, message(1))


def test_a_message_is_on_disk_before_keep_returns(store, monkeypatch):
    synced = []
    original = os.fsync

    def sync(file: int) -> None:
        synced.append(Path(f"/proc/self/fd/{file}").is_dir())
        original(file)

    monkeypatch.setattr(zetadp.base.storage.os, "fsync", sync)
    store.keep(0, "weights", message(), "head")
    assert synced == [True, False, True]  # the name of the new folder, the file, and the name of the file


def test_a_full_disk_is_a_users_error_and_keeps_nothing(store, monkeypatch):
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(zetadp.base.storage.os, "fsync", fail)
        with pytest.raises(UserError, match="No space left on device"):
            store.keep(0, "weights", message(), "head")
    assert store.find(0, "weights") is None
    assert not list(store.folder.iterdir())


def test_messages_before_a_checkpoint_go_and_later_ones_stay(store):
    store.discard(3)  # nothing there yet
    for number in range(5):
        store.keep(number, "weights", message(number), "head")
    assert store.size > 5 * message().nbytes
    store.discard(3)
    assert store.size == 0
    kept = [store.find(number, "weights") is not None for number in range(5)]
    assert kept == [False, False, False, True, True]


def test_files_do_not_tell_when_a_round_was_computed(store):
    """A round takes longer the more patients it drew."""
    store.keep(0, "weights", message(), "head")
    assert {path.stat().st_mtime for path in (store.folder, *store.folder.iterdir())} == {0.0}


def test_a_damaged_message_is_refused_rather_than_drawn_again(store):
    store.keep(0, "weights", message(), "head")
    (path,) = store.folder.iterdir()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match="Cannot read"):
        store.find(0, "weights")
