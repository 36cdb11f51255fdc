from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_builder import records

from zetadp.core.records import Node, Records, check_images_per_patient, choose_images, gather
from zetadp.privacy.events import Round
from zetadp.privacy.mechanism import Draw, SampledGaussian
from zetadp.validation import UserError


@dataclass
class NoLedger:
    def holds(self, event: Round) -> bool:
        return True


def node(own: list[list[int]], place: int = 0, seed: int = 1) -> Node:
    mechanism = SampledGaussian(
        "a", place, population=len(own), expected=1, noise_multiplier=0, clip=1, seed=seed, ledger=NoLedger()
    )
    return Node(mechanism, own)


def draw_of(holder: Node, members: list[int], number: int = 0) -> Draw:
    return Draw(holder.mechanism.draw(number).event, np.array(members, dtype=np.int64))


LABELS = np.repeat(np.arange(4), 5)


def test_where_images_are_drawn_each_stands_alone_and_no_other_is_taken():
    owners, positions = [[10], [10], [11], [11], [11]], [0, 1, 0, 1, 2]
    holder = Node(node(owners).mechanism, owners, positions)
    records, images = choose_images(holder, draw_of(holder, [1, 2, 4]), LABELS, 4)
    assert records.tolist() == [[10], [11], [11]]
    assert images.tolist() == [[1], [0], [2]]
    assert [part.shape for part in choose_images(holder, draw_of(holder, []), LABELS, 4)] == [(0, 1), (0, 1)]


@settings(max_examples=50)
@given(
    per_class=st.integers(1, 5),
    members=st.lists(st.integers(0, 5), max_size=6, unique=True),
    number=st.integers(0, 50),
)
def test_every_patient_gives_equally_many_images_of_every_class_each_once(per_class, members, number):
    own = [[10], [11, 12], [13], [14, 15, 16], [17], [18]]
    holder = node(own)
    chosen_records, images = choose_images(holder, draw_of(holder, members, number), LABELS, 4 * per_class)
    assert chosen_records.shape == images.shape == (len(members), 4 * per_class)
    for member, from_records, row in zip(members, chosen_records, images, strict=True):
        assert np.bincount(LABELS[row]).tolist() == [per_class] * 4
        assert len(set(row)) == len(row)
        assert set(from_records) <= set(own[member])


def test_a_patients_images_do_not_depend_on_who_else_is_drawn():
    """Else being drawn would show in the images of others, which no accountant of independent draws allows for."""
    holder = node([[0], [1, 2], [3], [4, 5, 6]])
    alone = [choose_images(holder, draw_of(holder, [member]), LABELS, 8) for member in range(4)]
    for members in ([0, 1, 2, 3], [1, 3], [0, 3]):
        chosen = choose_images(holder, draw_of(holder, members), LABELS, 8)
        for row, member in enumerate(members):
            for together, single in zip(chosen, alone[member], strict=True):
                np.testing.assert_array_equal(together[row], single[0])


def test_all_images_are_each_taken_once():
    holder = node([[0], [1]])
    _, images = choose_images(holder, draw_of(holder, [0, 1]), LABELS, 20)
    assert np.sort(images, axis=1).tolist() == [list(range(20))] * 2


def test_several_records_of_a_patient_are_all_used():
    holder = node([[3, 4]])
    chosen_records, _ = choose_images(holder, draw_of(holder, [0]), LABELS, 20)
    assert set(chosen_records[0]) == {3, 4}


def test_the_choice_differs_between_patients_rounds_nodes_and_runs():
    holder = node([[0], [1]])
    choices = [
        choose_images(holder, draw_of(holder, [0, 1], 0), LABELS, 8)[1][0],
        choose_images(holder, draw_of(holder, [0, 1], 0), LABELS, 8)[1][1],
        choose_images(holder, draw_of(holder, [0, 1], 1), LABELS, 8)[1][0],
    ]
    for other in (node([[0], [1]], place=1), node([[0], [1]], seed=2)):
        choices.append(choose_images(other, draw_of(other, [0, 1]), LABELS, 8)[1][0])
    assert len({tuple(sorted(choice)) for choice in choices}) == 5
    again = choose_images(holder, draw_of(holder, [0, 1]), LABELS, 8)[1][0]
    assert np.array_equal(again, choices[0])


def test_every_image_of_a_class_is_as_likely():
    holder = node([[0]] * 50)
    counts = np.zeros(20)
    rounds = 40
    for number in range(rounds):
        _, images = choose_images(holder, draw_of(holder, list(range(50)), number), LABELS, 4)
        counts += np.bincount(images.ravel(), minlength=20)
    trials, p = 50 * rounds, 1 / 5
    assert np.abs(counts - trials * p).max() < 5 * (trials * p * (1 - p)) ** 0.5


@pytest.mark.parametrize("count", [4, 8, 20])
def test_numbers_of_images_that_can_be_shared_equally_pass(count):
    check_images_per_patient(count, LABELS)


@pytest.mark.parametrize("count", [1, 3, 6, 24])
def test_numbers_of_images_that_cannot_are_a_users_error(count):
    with pytest.raises(
        UserError, match=f"training.images_per_patient to be a multiple of 4 .* up to 20, found {count}"
    ):
        check_images_per_patient(count, LABELS)


def test_all_images_pass_even_where_classes_are_unequal():
    check_images_per_patient(3, np.array([0, 0, 1]))


def test_gathered_images_and_labels_belong_together():
    data = records(4, images_per_class=2)
    which, images = np.array([[3, 0], [1, 1]]), np.array([[7, 0], [2, 5]])
    values, labels = gather(data, which, images)
    assert values.shape == values[:].shape == (2, 2, 1, *data.images.shape[2:])
    assert (len(values), values.dtype, values.device) == (2, data.images.dtype, data.images.device)
    assert torch.equal(values[1:], values[:][1:])
    values = values[:]
    for row, column in np.ndindex(2, 2):
        assert torch.equal(values[row, column, 0], data.images[which[row, column], images[row, column]])
        assert labels[row, column] == data.labels[images[row, column]]


def test_classes_are_counted_from_the_labels():
    assert Records(torch.zeros(1, 3, 2, 2), torch.tensor([0, 2, 1])).classes == 3
