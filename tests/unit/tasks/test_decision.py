"""The images of a slice classified together, one of each sequence."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from run_builder import write_run

from zetadp.cohort.decathlon import SEQUENCES
from zetadp.report import notes, rendering, tables
from zetadp.storage import read_json, write_json
from zetadp.tasks.brain_sequences import BrainSequences
from zetadp.validation import UserError

RECORDS, SLICES, COUNT = 3, 5, len(SEQUENCES)
ALONE, TOGETHER = BrainSequences(slices=SLICES), BrainSequences(slices=SLICES, decision="slice")
TARGETS = torch.arange(COUNT).repeat_interleave(SLICES).repeat(RECORDS)


@pytest.fixture
def scores():
    """Scores by record, sequence and slice."""
    return 2 * torch.randn(RECORDS, COUNT, SLICES, COUNT, generator=torch.Generator().manual_seed(0))


def together(scores):
    return TOGETHER.probabilities(scores.reshape(-1, COUNT)).reshape(scores.shape)


def test_probabilities_are_those_of_an_image_given_that_a_slice_has_every_sequence_once(scores):
    by_itself = scores[1, :, 2].double().softmax(dim=-1).numpy()
    expected, whole = np.zeros((COUNT, COUNT)), 0.0
    for order in permutations(range(COUNT)):
        chance = np.prod([by_itself[image, order[image]] for image in range(COUNT)])
        whole += chance
        expected[np.arange(COUNT), order] += chance
    torch.testing.assert_close(together(scores)[1, :, 2], torch.tensor(expected / whole).float())
    assert together(10 * scores).max() <= 1
    # Every sequence is there once, so the images share it among them.
    torch.testing.assert_close(together(scores).sum(dim=1), torch.ones(RECORDS, SLICES, COUNT))


def test_the_order_of_the_images_in_a_slice_tells_nothing(scores):
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(together(scores[:, order]), together(scores)[:, order])


def test_other_slices_and_other_patients_tell_nothing(scores):
    changed = scores.clone()
    changed[0], changed[1, :, 3] = 0, 0
    kept = torch.ones(RECORDS, SLICES, dtype=torch.bool)
    kept[0], kept[1, 3] = False, False
    same = (together(changed) == together(scores)).all(dim=-1).all(dim=1)
    assert torch.equal(same, kept)


def test_an_image_that_resembles_two_sequences_gets_the_one_that_is_left():
    scores = 4 * torch.eye(COUNT).expand(RECORDS, SLICES, COUNT, COUNT).transpose(1, 2).clone()
    scores[:, 2] = torch.tensor([0.0, 2.0, 1.5, 0.0])  # T1gd, which looks more like the plain T1w
    flat = scores.reshape(-1, COUNT)
    assert ALONE.scores(flat, TARGETS).mean() == pytest.approx(3 / 4)
    assert TOGETHER.scores(flat, TARGETS).mean() == 1
    table = pd.DataFrame({"patient": np.repeat(["a", "b", "c"], COUNT * SLICES), **TOGETHER.measure(flat, TARGETS)})
    table["slice"] = np.tile(np.arange(SLICES), RECORDS * COUNT)
    found = TOGETHER.summarise(table)
    assert (found["accuracy"], found["image_accuracy"], found["volume_accuracy"]) == (1, 0.75, 1)
    assert "image_accuracy" not in ALONE.summarise(table.drop(columns="alone"))


def test_scores_that_say_nothing_are_right_by_chance():
    scores = torch.zeros(RECORDS * COUNT * SLICES, COUNT)
    assert TOGETHER.scores(scores, TARGETS).mean() == pytest.approx(1 / COUNT)


def test_another_decision_is_refused():
    with pytest.raises(UserError, match="Expected decision image or slice, found 'patient'"):
        BrainSequences(decision="patient")


def test_tables_show_each_image_by_itself_and_volumes_too_and_no_printed_figures(tmp_path):
    right = {"a": 20, "b": 10}
    folder = write_run(tmp_path, right)
    by_itself = tables.table1(tables.collect([folder]), "simulated")
    assert "each image by itself" not in rendering.to_markdown(rendering.accuracy_sheet(by_itself))
    assert by_itself["paper_mean"].notna().any()
    write_json(folder / "metrics.json", read_json(folder / "metrics.json") | {"image_accuracy": 0.625})
    runs = tables.collect([folder])
    table = tables.table1(runs, "simulated")
    assert table["paper_mean"].isna().all()
    lines = rendering.to_markdown(rendering.accuracy_sheet(table)).splitlines()
    assert "|  | each image by itself | 62.50 |" in lines
    assert "|  | volumes | 75.00 |" in lines
    assert any("classified together, one of each sequence" in note for note in notes.notes(runs, "simulated"))
