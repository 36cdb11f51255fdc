from __future__ import annotations

import math
import resource

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError
from zetadp.core.checkpoint import Checkpoint

CPU = torch.device("cpu")
STATE = {
    "weights": torch.randn(7, generator=torch.Generator().manual_seed(0)),
    "optimiser.step": torch.tensor(3.0),
    "complex": torch.tensor([1 + 2j, -0.5j]),
}


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    history = pd.DataFrame({"round": [1.0, 2.0], "seconds": [0.1, 1 / 3], "validation_loss": [math.nan, 2.5]})
    Checkpoint(2, "abc", STATE, history, "f" * 64).save(tmp_path / "a.partial")
    found = Checkpoint.load(tmp_path / "a.partial", CPU)
    assert (found.round, found.fingerprint, found.ledger_head) == (2, "abc", "f" * 64)
    pd.testing.assert_frame_equal(found.history, history, check_exact=True)
    assert found.state.keys() == STATE.keys()
    for key, value in STATE.items():
        assert found.state[key].dtype == value.dtype
        assert torch.equal(found.state[key], value)


def test_tensors_that_share_memory_are_written_each(tmp_path):
    whole = torch.arange(6.0)
    save_tensors(tmp_path / "a.safetensors", {"whole": whole, "part": whole[2:4]}, {})
    tensors, _ = load_tensors(tmp_path / "a.safetensors")
    assert tensors["part"].tolist() == [2, 3]


def test_a_save_that_fails_leaves_the_checkpoint_before(tmp_path):
    path = tmp_path / "a.partial"
    before = Checkpoint(1, "abc", STATE, pd.DataFrame(), "0")
    before.save(path)
    kept = path.read_bytes()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, unlimited[1]))
    try:
        with pytest.raises(UserError, match=r"Cannot write .*a\.partial"):
            Checkpoint(2, "abc", STATE | {"more": torch.zeros(1000)}, pd.DataFrame(), "1").save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert path.read_bytes() == kept
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", [0, 4, 50, -1])
def test_a_damaged_file_is_a_users_error(tmp_path, cut):
    path = tmp_path / "a.safetensors"
    save_tensors(path, STATE, {"x": 1})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"Cannot read .*a\.safetensors"):
        load_tensors(path)


def test_an_absent_file_and_one_of_another_program_are_a_users_error(tmp_path):
    with pytest.raises(UserError, match=r"absent\.safetensors"):
        load_tensors(tmp_path / "absent.safetensors")
    path = tmp_path / "other.safetensors"
    save_file({"weights": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"Expected .*other\.safetensors to be a file written by zetadp .* found None"):
        load_tensors(path)
