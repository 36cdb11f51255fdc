"""Whether network, loss and labels fit each other, judged before a private run spends anything."""

from __future__ import annotations

import pytest
import torch
from flat_calls import private

from zetadp.base.validation import UserError
from zetadp.own.records import Records

ITEMS = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
CLASSES = torch.arange(24) % 3
GIVEN = {"epsilon": 8, "delta": 0.1, "population": 8, "per_round": 4, "rounds": 2}


def prepared(folder, last=None, labels=CLASSES, outputs=3, **changed):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(5, outputs), *([] if last is None else [last])]
    data = Records(ITEMS, labels, patients=torch.arange(24) // 3)
    return private(torch.nn.Sequential(*layers), data, **{**GIVEN, "folder": folder / "run", **changed})


def failing(error):
    def loss(outputs, labels):
        raise error

    return loss


ERRORS = {
    "a missing key": (KeyError("weights"), "KeyError: 'weights'."),
    "an index": (IndexError("list index out of range"), "IndexError: list index out of range."),
    "two sentences": (RuntimeError("Shapes differ. A page of advice."), "RuntimeError: Shapes differ."),
}


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_of_the_loss_is_named_with_its_kind(tmp_path, what):
    error, text = ERRORS[what]
    with pytest.raises(UserError, match=rf"^loss: .*found an error: {text}$"):
        prepared(tmp_path, loss=failing(error))


@pytest.mark.parametrize("result", [None, 3.0, (1, 2)], ids=str)
def test_a_loss_that_returns_no_tensor_is_refused_with_what_it_returns(tmp_path, result):
    with pytest.raises(UserError, match=rf"^loss: Expected one real loss per item.*found {type(result).__name__}\."):
        prepared(tmp_path, loss=lambda outputs, labels: result)


def test_labels_that_the_loss_refuses_are_found_before_anything_is_begun(tmp_path):
    """Cross-entropy takes the first two items here, and no class beyond the scores."""
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(UserError, match=r"^labels: .*from 1 to 3, .*Target 3 is out of bounds"):
        prepared(tmp_path, labels=CLASSES + 1, loss=loss)
    with pytest.raises(UserError, match=r"^labels: .*classes are numbered from 0"):
        prepared(tmp_path, labels=CLASSES + 1)
    assert not (tmp_path / "run").exists()
    prepared(tmp_path, labels=CLASSES.masked_fill(CLASSES == 2, -100), loss=loss)  # which it ignores


@pytest.mark.parametrize("seed", [None, 0])
def test_a_loss_that_takes_labels_of_a_range_alone_is_trained(tmp_path, seed):
    """The check of independent units uses large numbers, which BCELoss refuses as labels."""
    labels = (CLASSES == 0).float()[:, None]
    run = prepared(tmp_path, torch.nn.Sigmoid(), labels, 1, loss=torch.nn.BCELoss(reduction="none"), seed=seed)
    assert run.train().state == "finished"
    with pytest.raises(UserError, match=r"^(loss|labels): .*between 0 and 1"):
        prepared(tmp_path / "other", torch.nn.Sigmoid(), 2 * labels, 1, loss=torch.nn.BCELoss(reduction="none"))
