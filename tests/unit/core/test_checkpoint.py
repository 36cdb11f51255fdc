from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

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


@pytest.mark.parametrize("cut", [0, 4, 50, -1])
def test_a_damaged_file_is_a_users_error(tmp_path, cut):
    path = tmp_path / "a.safetensors"
    save_tensors(path, STATE, {"x": 1})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"Cannot read .*a\.safetensors"):
        load_tensors(path)
