"""The images of a slice or the volumes of a patient classified together, one of each sequence."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from run_builder import predictions as predicted
from run_builder import write_run

from zetadp.base.storage import read_json, write_json
from zetadp.brain import BrainSequences
from zetadp.brain.task import DECISIONS, KEEN
from zetadp.mri.decathlon import SEQUENCES
from zetadp.report import notes, rendering, tables
from zetadp.report.provenance import Cohort

COHORT = Cohort("cohort", simulated=True)
RECORDS, SLICES, COUNT = 3, 5, len(SEQUENCES)
ALONE, TOGETHER, VOLUMES = (BrainSequences(slices=SLICES, decision=decision) for decision in DECISIONS)
TARGETS = torch.arange(COUNT).repeat_interleave(SLICES).repeat(RECORDS)


@pytest.fixture
def scores():
    """Scores by record, sequence and slice."""
    return 2 * torch.randn(RECORDS, COUNT, SLICES, COUNT, generator=torch.Generator().manual_seed(0))


def together(scores):
    return TOGETHER.probabilities(scores.reshape(-1, COUNT)).reshape(scores.shape)


def predictions(task, flat):
    table = pd.DataFrame({"patient": np.repeat(["a", "b", "c"], COUNT * SLICES), **task.measure(flat, TARGETS)})
    return table.assign(slice=np.tile(np.arange(SLICES), RECORDS * COUNT))


def test_probabilities_are_those_of_an_image_given_that_a_slice_has_every_sequence_once(scores):
    expected = np.zeros(scores.shape)
    for record, place in np.ndindex(RECORDS, SLICES):
        by_itself = scores[record, :, place].double().softmax(dim=-1).numpy()
        for order in permutations(range(COUNT)):
            expected[record, np.arange(COUNT), place, order] += np.prod(by_itself[np.arange(COUNT), order])
    expected /= expected.sum(axis=-1, keepdims=True)
    torch.testing.assert_close(together(scores), torch.tensor(expected).float())
    assert together(10 * scores).max() <= 1


@pytest.mark.parametrize("task", [TOGETHER, VOLUMES])
@pytest.mark.parametrize("known", [(0, 1, 2), (3, 1), (2, 0)])
def test_sequences_that_are_there_differ_and_absent_ones_say_nothing(scores, known, task):
    some = torch.full_like(scores, torch.nan)
    some[:, known] = scores[:, known]
    found = task.probabilities(some.reshape(-1, COUNT)).reshape(scores.shape)
    absent = [sequence for sequence in range(COUNT) if sequence not in known]
    assert found[:, absent].isnan().all()
    by_itself = scores.double().log_softmax(dim=-1)
    if task is VOLUMES:
        by_itself = by_itself.mean(dim=2, keepdim=True).expand_as(scores)
    expected = torch.zeros_like(scores[:, known], dtype=torch.float64)
    for choice in permutations(range(COUNT), len(known)):
        joint = sum(by_itself[:, image, :, chosen] for image, chosen in zip(known, choice, strict=True)).exp()
        for place, chosen in enumerate(choice):
            expected[:, place, :, chosen] += joint
    expected /= expected.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(found[:, known], expected.float())


def test_the_weight_of_two_heads_follows_from_the_sequences_that_are_there(scores):
    own, public = scores.clone(), scores.flip(-1).clone()
    own[:, 2], public[:, 2] = torch.nan, torch.nan
    mixed = TOGETHER.combine_scores(own.reshape(-1, COUNT), public.reshape(-1, COUNT)).reshape(scores.shape)
    assert mixed[:, 2].isnan().all()
    known = torch.tensor([0, 1, 3])
    orders = torch.tensor(list(permutations(range(COUNT), 3)))
    best = [head.mean(dim=2).log_softmax(dim=-1)[0, known, orders].sum(dim=1).max() for head in (own, public)]
    weight = (KEEN * (best[0] - best[1])).sigmoid()
    expected = weight * own[0, 0] + (1 - weight) * public[0, 0]
    torch.testing.assert_close(mixed[0, 0], expected)


def test_the_slices_of_a_volume_count_as_one_image_with_their_mean_score(scores):
    found = VOLUMES.probabilities(scores.reshape(-1, COUNT)).reshape(scores.shape)
    mean = scores.log_softmax(dim=-1).mean(dim=2, keepdim=True).expand_as(scores)
    torch.testing.assert_close(found, together(mean))


def test_an_image_that_resembles_two_sequences_gets_the_one_that_is_left():
    scores = 4 * torch.eye(COUNT).expand(RECORDS, SLICES, COUNT, COUNT).transpose(1, 2).clone()
    scores[:, 2] = torch.tensor([0.0, 2.0, 1.5, 0.0])  # T1gd, which looks more like the plain T1w
    flat = scores.reshape(-1, COUNT)
    assert ALONE.scores(flat, TARGETS).mean() == pytest.approx(3 / 4)
    assert TOGETHER.scores(flat, TARGETS).mean() == 1
    table = predictions(TOGETHER, flat)
    found = TOGETHER.summarise(table)
    assert (found["accuracy"], found["image_accuracy"], found["volume_accuracy"]) == (1, 0.75, 1)
    assert "image_accuracy" not in ALONE.summarise(table.drop(columns="alone"))


def likeliest(scores):
    """Return the log-likelihood of the likeliest order of a record's volumes, by their mean scores, order by order."""
    mean = scores.double().mean(dim=1).log_softmax(dim=-1)
    return max(float(mean[torch.arange(COUNT), list(order)].sum()) for order in permutations(range(COUNT)))


def test_of_two_heads_the_one_that_explains_a_record_better_counts_more(scores):
    public = 2 * torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    public[1] += 9 * torch.eye(COUNT)[:, None]  # sure of a record of which the trained head is not
    found = TOGETHER.combine_scores(scores.reshape(-1, COUNT), public.reshape(-1, COUNT)).reshape(scores.shape)
    for own, known, mixed in zip(scores, public, found, strict=True):
        weight = 1 / (1 + np.exp(-KEEN * (likeliest(own) - likeliest(known))))
        torch.testing.assert_close(mixed, weight * own + (1 - weight) * known)
    torch.testing.assert_close(found[1], public[1])
    order = torch.tensor([2, 0, 3, 1])  # the volumes of a patient may come in any order
    turned = (scores[:, order].reshape(-1, COUNT), public[:, order].reshape(-1, COUNT))
    torch.testing.assert_close(TOGETHER.combine_scores(*turned).reshape(scores.shape), found[:, order])


@pytest.mark.parametrize(
    ("task", "further", "note"),
    [
        (ALONE, {"volume": "75.0"}, None),
        (TOGETHER, {"image": "55.0", "volume": "75.0"}, "The images of a slice are classified together"),
        (VOLUMES, {"image": "55.0", "volume": "75.0"}, "The volumes of a patient are classified together"),
    ],
)
def test_tables_and_notes_show_further_accuracies(tmp_path, task, further, note):
    folder = write_run(tmp_path, {"a": 20, "b": 10})
    table = predicted({"a": 20, "b": 10})
    alone = table["predicted"].where(np.arange(len(table)) % 4 > 0, "none")  # 8 of 30 correct answers are wrong alone
    summary = task.summarise(table.assign(alone=alone))
    write_json(folder / "metrics.json", read_json(folder / "metrics.json") | summary)
    runs = tables.collect([folder])
    sheets = rendering.further_sheets(tables.table1(runs, COHORT))
    assert {sheet.title: sheet.rows[0][2] for sheet in sheets} == {
        f"Test {name} accuracy in %": value for name, value in further.items()
    }
    assert any("classified together" in line for line in notes.notes(runs, COHORT)) == (note is not None)
    assert note is None or any(line.startswith(note) for line in notes.notes(runs, COHORT))
