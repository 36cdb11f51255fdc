"""Whether network, loss and labels fit each other, judged before a private run spends anything."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from flat_calls import private
from torch.nn import functional

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


def refusing(outputs, labels):
    if (labels == 7).any():
        raise OwnError("seven")
    return outputs[:, 0] - labels


def failing(error):
    def loss(outputs, labels):
        raise error

    return loss


class OwnError(Exception):
    """An error that no library knows."""


ERRORS = {
    "one of a class of the user": (OwnError("no overlap"), "OwnError: no overlap"),
    "a missing key": (KeyError("weights"), "KeyError: 'weights'"),
    "an index": (IndexError("list index out of range"), "IndexError: list index out of range"),
    "two sentences": (RuntimeError("Shapes differ. A page of advice."), "RuntimeError: Shapes differ"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_of_the_loss_is_named_with_its_kind_and_line(tmp_path, what):
    error, text = ERRORS[what]
    line = r"\(line \d+ of .*test_losses\.py, in loss: raise error\)"
    with pytest.raises(UserError, match=rf"^loss: .*found an error: {text} {line}\.$") as raised:
        prepared(tmp_path, loss=failing(error))
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("result", [None, 3.0, (1, 2)], ids=str)
def test_a_loss_that_returns_no_tensor_is_refused_with_what_it_returns(tmp_path, result):
    with pytest.raises(UserError, match=rf"^loss: Expected one real loss per item.*found {type(result).__name__}\."):
        prepared(tmp_path, loss=lambda outputs, labels: result)


def test_a_loss_that_broadcasts_over_items_is_told_the_shape_of_labels(tmp_path):
    with pytest.raises(UserError, match=r"^loss: .*mixes units.* use labels\[:, None\]"):
        prepared(tmp_path, labels=ITEMS[:, 0], outputs=1, loss=lambda outputs, labels: (outputs - labels).abs().mean(1))


def test_labels_that_the_loss_refuses_are_found_before_anything_is_begun(tmp_path):
    """Cross-entropy takes the first two items here, and no class beyond the scores."""
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(UserError, match=r"^labels: .*from 1 to 3, .*Target 3 is out of bounds"):
        prepared(tmp_path, labels=CLASSES + 1, loss=loss)
    with pytest.raises(UserError, match=r"^labels: .*refuses that of item 7: OwnError: seven \(line"):
        prepared(tmp_path, labels=torch.arange(24).remainder(12).float(), outputs=1, loss=refusing)
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


SOFTMAX, LOG_SOFTMAX, SIGMOID = torch.nn.Softmax(1), torch.nn.LogSoftmax(1), torch.nn.Sigmoid()
TWICE = {
    "the default": None,
    "a loss of PyTorch": torch.nn.CrossEntropyLoss(reduction="none"),
    "with weights": torch.nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 2, 3])),
    "smoothed": partial(functional.cross_entropy, reduction="none", label_smoothing=0.1),
}


@pytest.mark.parametrize("what", TWICE)
def test_a_softmax_before_a_loss_that_takes_one_is_refused(tmp_path, what):
    with pytest.raises(UserError, match=r"^model: Expected class scores, found probabilities, which sum to one"):
        prepared(tmp_path, SOFTMAX, loss=TWICE[what])
    assert not (tmp_path / "run").exists()


BINARY = {"labels": (CLASSES == 0).float()[:, None], "outputs": 1}
DOUBTFUL = {
    "sigmoid before cross-entropy": {"last": SIGMOID},
    "sigmoid before a loss that takes one": {
        "last": SIGMOID,
        "loss": torch.nn.BCEWithLogitsLoss(reduction="none"),
        **BINARY,
    },
    "softmax before a loss of logarithms": {"last": SOFTMAX, "loss": torch.nn.NLLLoss(reduction="none")},
}


@pytest.mark.parametrize("what", DOUBTFUL)
def test_other_probabilities_for_a_loss_of_scores_are_warned_of(tmp_path, what, caplog):
    prepared(tmp_path, **DOUBTFUL[what])
    assert [record.levelname for record in caplog.records] == ["WARNING"]


CORRECT = {
    "scores": {},
    "logarithms, which a softmax leaves as they are": {"last": LOG_SOFTMAX},
    "logarithms for a loss of them": {"last": LOG_SOFTMAX, "loss": torch.nn.NLLLoss(reduction="none")},
    "probabilities for a loss of them": {
        "last": SOFTMAX,
        "loss": lambda outputs, labels: functional.nll_loss(outputs.log(), labels, reduction="none"),
    },
    "a probability for a loss of it": {"last": SIGMOID, "loss": torch.nn.BCELoss(reduction="none"), **BINARY},
    "a distance": {"last": SIGMOID, "loss": torch.nn.MSELoss(reduction="none"), **BINARY},
    "scores that do not become negative": {"last": torch.nn.ReLU()},
}


@pytest.mark.parametrize("what", CORRECT)
def test_outputs_that_fit_their_loss_pass_in_silence(tmp_path, what, caplog):
    prepared(tmp_path, **CORRECT[what])
    assert not caplog.records
