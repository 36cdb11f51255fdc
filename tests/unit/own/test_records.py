"""Records at the front door: what is accepted, what is refused, and by which argument's name."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from zetadp.base.validation import UserError
from zetadp.own.records import LookedUp, Records

ITEMS = torch.randn(6, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
LABELS = [0, 1, 0, 1, 0, 1]
IDS = ["a", "a", "b", "b", "c", "c"]


class Pairs(torch.utils.data.Dataset):
    """A map-style dataset of (input, label)."""

    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, place):
        return ITEMS[place], LABELS[place]


def in_a_file(tmp_path):
    file = h5py.File(tmp_path / "items.h5", "w")
    return file.create_dataset("items", data=ITEMS.numpy(), chunks=(2, 3))


SOURCES = {
    "tensor": lambda _: (ITEMS, LABELS),
    "array": lambda _: (ITEMS.numpy(), np.array(LABELS)),
    "list of tensors": lambda _: (list(ITEMS), LABELS),
    "HDF5": lambda tmp_path: (in_a_file(tmp_path), LABELS),
    "Dataset": lambda _: (Pairs(), None),
}


@pytest.mark.parametrize("source", SOURCES)
def test_items_of_any_source_are_the_same_records(tmp_path, source):
    plain, other = Records(ITEMS, LABELS, patients=IDS), Records(*SOURCES[source](tmp_path), patients=IDS)
    places = torch.tensor([[5, 0], [2, 2]])
    assert torch.equal(other.inputs[places], ITEMS[places])
    assert other.inputs[places].dtype == torch.complex64
    assert torch.equal(other.targets, plain.targets)
    assert other.digest == plain.digest


def test_items_of_hospitals_are_looked_up_at_once(tmp_path, monkeypatch):
    """One by one, those in files take ten times as long."""
    each = {name: SOURCES[name](tmp_path) for name in ("tensor", "HDF5", "Dataset")}
    parts = {name: Records(*given, patients=[f"{name} {one}" for one in IDS]) for name, given in each.items()}
    joined, looked, real = Records.of_hospitals(parts), [], LookedUp._items
    monkeypatch.setattr(LookedUp, "_items", lambda self, places: looked.append(places) or real(self, places))
    places = torch.randperm(3 * len(ITEMS), generator=torch.Generator().manual_seed(0)).reshape(3, -1)
    assert torch.equal(joined.inputs[places], ITEMS.repeat(3, *[1] * (ITEMS.ndim - 1))[places])
    assert len(looked) == 3  # all, and those of each of the two holders that keep theirs elsewhere


@pytest.mark.parametrize("kind", [np.float64, np.int32, bool, np.complex128])
def test_other_numbers_are_converted_and_it_is_said(kind, caplog):
    found = Records(np.ones((2, 2), kind), np.ones(2, kind), patients=[1, 2])
    expected = torch.complex64 if kind is np.complex128 else torch.float32
    assert found.inputs.dtype == expected
    assert found.targets.dtype == (torch.int64 if kind in (bool, np.int32) else expected)
    assert f"to {str(expected).removeprefix('torch.')}" in caplog.text


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS = {
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "backwards": lambda array: array[::-1].copy()[::-1],
    "by columns": np.asfortranarray,
    "read-only": read_only,
    "wider than PyTorch's": lambda array: array.astype(np.clongdouble),
    "with an empty mask": np.ma.asarray,
    "with a gradient": lambda array: torch.from_numpy(array).requires_grad_(),
    "conjugated": lambda array: torch.from_numpy(array.conj()).conj(),
    "masked parts without a mask": lambda array: [np.ma.asarray(part) for part in array],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_layout_hold_the_same_items(layout, recwarn):
    items = LAYOUTS[layout](ITEMS.numpy())
    assert Records(items, LABELS, patients=IDS).digest == Records(ITEMS, LABELS, patients=IDS).digest
    assert not recwarn.list


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_short_numbers_become_float32_and_real_labels_too(kind):
    items = ITEMS.real.to(kind)
    found = Records(items, items[:, 0], patients=IDS)
    assert torch.equal(found.inputs, items.float())
    assert torch.equal(found.targets, items[:, 0].float())


def test_labels_read_backwards_or_big_endian_are_the_same_classes():
    labels = np.array(LABELS)
    for given in (labels[::-1].copy()[::-1], labels.astype(">i4")):
        assert Records(ITEMS, given, patients=IDS).targets.tolist() == LABELS


def test_items_of_a_file_that_was_closed_are_refused_with_what_to_do(tmp_path):
    dataset = in_a_file(tmp_path)
    records = Records(dataset, LABELS, patients=IDS)
    dataset.file.close()
    with pytest.raises(UserError, match=r"items: .*closed.*Keep it open"):
        records.inputs[torch.tensor([0])]


@pytest.mark.parametrize(("kind", "first"), [(np.float32, 2**24), (np.float64, 2**53), (np.float16, 2**11)])
def test_ids_that_their_type_does_not_hold_exactly_are_refused(kind, first):
    ids = np.arange(first, first + len(ITEMS)).astype(kind)
    for given in (ids, torch.from_numpy(ids), pd.Series(ids), list(ids)):
        with pytest.raises(UserError, match=r"patients: .*different ids may have become one"):
            Records(ITEMS, LABELS, patients=given)
    below = (ids - len(ITEMS) * max(1, first // 2**12)).astype(kind)
    assert Records(ITEMS[:1], LABELS[:1], patients=below[:1]).units == 1


@pytest.mark.parametrize("ids", [["a", "b", "b"], [1, 2.0, 2], [b"a", b"b", b"b"]])
def test_ids_are_texts_or_whole_numbers(ids):
    records = Records(np.zeros((3, 1)), [0, 0, 0], patients=ids)
    assert records.units == 2
    assert records.ids == (ids[0], ids[1])


@pytest.mark.parametrize("ids", [["p0", "P0 ", b"p0"], [7, 7.0, "7"]])
def test_an_account_knows_a_patient_however_the_id_is_written(ids):
    (text,) = {text for one in ids for text in Records(np.zeros((1, 1)), [0], patients=[one]).texts}
    assert text == f"str '{ids[0]}'"


def with_nan():
    items = ITEMS.clone()
    items[3, 1] = complex(0, float("nan"))
    return items


class Broken(torch.utils.data.Dataset):
    """A dataset whose items cannot be used."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return len(ITEMS)

    def __getitem__(self, place):
        return self.item(place), LABELS[place]


def lost(_):
    raise FileNotFoundError("item.npy")


WRONG = {
    "no ids": ({"patients": None}, "patients"),
    "a number of patients": ({"patients": 3}, "patients"),
    "one number": ({"items": torch.tensor(3.0)}, "items"),
    "no items": ({"items": None}, "items"),
    "items of several shapes": (
        {"items": Broken(lambda place: ITEMS[place, : 1 + place % 3]), "labels": None},
        "items",
    ),
    "items by name": ({"items": Broken(lambda place: {"x": ITEMS[place]}), "labels": None}, "items"),
    "an item that cannot be read": ({"items": Broken(lost), "labels": None}, "items"),
    "a dataset without labels": ({"items": torch.utils.data.TensorDataset(ITEMS), "labels": None}, "labels|items"),
    "fewer labels": ({"labels": LABELS[:5]}, "labels"),
    "nobody": ({"patients": [*IDS[:5], None]}, "patients"),
    "two owners": ({"patients": [*IDS[:5], {"a", "b"}]}, "patients"),
    "a tuple": ({"patients": [*IDS[:5], ("c", 1)]}, "patients"),
    "an object": ({"patients": [*IDS[:5], object()]}, "patients"),
    "half a number": ({"patients": [*IDS[:5], 0.5]}, "patients"),
    "bytes of another code": ({"patients": [*IDS[:5], b"\xff"]}, "patients"),
    "a mask": ({"patients": [True, False] * 3}, "patients"),
    "positions of patients": ({"patients": {"a": [0, 1]}}, "patients"),
    "names of classes": ({"labels": list("ababab")}, "labels"),
    "masked items": ({"items": np.ma.masked_invalid(with_nan().numpy())}, "items"),
    "masked labels": ({"labels": np.ma.masked_equal(LABELS, 1)}, "labels"),
    "masked ids": ({"patients": np.ma.masked_equal([1, 1, 2, 2, 3, 3], 2)}, "patients"),
    "large whole numbers": ({"items": np.full((6, 2), 2**24 + 1)}, "items"),
    "without values": ({"items": ITEMS.to("meta")}, "items"),
    "sparse": ({"items": torch.eye(6).to_sparse()}, "items"),
    "nested": ({"items": torch.nested.nested_tensor([torch.zeros(2)], layout=torch.jagged)}, "items"),
    "empty id": ({"patients": [*IDS[:5], ""]}, "patients"),
    "NaN as id": ({"patients": [*IDS[:5], float("nan")]}, "patients"),
    "one text": ({"patients": "abcdef"}, "patients"),
    "NaN": ({"items": with_nan()}, "items"),
    "labels of NaN": ({"labels": [0.5, float("nan"), 1, 1, 1, 1]}, "labels"),
    "a loader": ({"items": torch.utils.data.DataLoader(Pairs())}, "items"),
    "nothing": ({"items": ITEMS[:0], "labels": [], "patients": []}, "item"),
    "no labels": ({"labels": None}, "labels"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_refused_by_the_arguments_name(what):
    changed, name = WRONG[what]
    given = {"items": ITEMS, "labels": LABELS, "patients": IDS} | changed
    with pytest.raises(UserError, match=rf"^(Records: .*{name}|{name}: ).*") as refused:
        Records(given["items"], given["labels"], patients=given["patients"])
    assert re.search(r"Expected .*found|Expected .*failed", str(refused.value))
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("other", ["A", "a ", b"a", "\uff41"])
def test_two_spellings_of_one_id_are_refused_also_at_two_hospitals(other):
    with pytest.raises(UserError, match=r"patients.*'a'"):
        Records(ITEMS, LABELS, patients=[other, *IDS[1:]])
    with pytest.raises(UserError, match=r"records: .*'a' at north and .* at south"):
        Records.of_hospitals(
            {name: Records(ITEMS[:1], LABELS[:1], patients=[one]) for name, one in (("north", "a"), ("south", other))}
        )


def test_the_message_on_a_bad_item_names_item_and_patient():
    with pytest.raises(UserError, match=r"item 3 .*patient b"):
        Records(with_nan(), LABELS, patients=IDS)


def test_a_split_keeps_patients_whole_and_looks_at_ids_alone():
    ids = np.repeat(np.arange(100), 3)
    records = Records(torch.randn(300, 2), torch.zeros(300, dtype=torch.long), patients=ids)
    others = Records(torch.randn(300, 2), torch.ones(300, dtype=torch.long), patients=ids)
    train, test = records.split(test=20)
    assert (train.units, test.units, len(train), len(test)) == (80, 20, 240, 60)
    assert not set(train.ids) & set(test.ids)
    assert others.split(test=20)[1].ids == test.ids != records.split(test=20, seed=1)[1].ids
    for wrong in (0, 100, 2.5, "20"):
        with pytest.raises(UserError, match="test"):
            records.split(test=wrong)


def parts_by(hospitals):
    data = Records(np.arange(12, dtype=np.float32).reshape(6, 2), [0] * 6, patients=["a", "b", "a", "c", "c", "b"])
    return {name: (part.ids, part.inputs[:, 0].tolist()) for name, part in data.split_by(hospitals).items()}


def test_records_are_split_by_hospital_with_whole_patients():
    expected = {"north": (("a", "c"), [0, 4, 6, 8]), "south": (("b",), [2, 10])}
    assert parts_by({"A ": "north", "b": "south", "c": "north", "of another cohort": "west"}) == expected
    assert parts_by(["north", "south", "north", "north", "north", "south"]) == expected


@pytest.mark.parametrize(
    ("hospitals", "message"),
    [
        ({"a": "north", "b": "south"}, "none for 1 patient.*'c'"),
        ({"a": "north", "b": "south", "c": "north", "C": "south"}, "two spellings of 'C'"),
        ({"a": "north", "b": "south", "c": None}, "found None"),
        (["north"] * 5, "5 names for 6 items"),
        (["north", "south", "south", "north", "north", "south"], "'a' at north and south"),
        ("north", "found 'north'"),
    ],
)
def test_a_split_without_one_hospital_for_each_patient_is_refused(hospitals, message):
    with pytest.raises(UserError, match=rf"^split_by: .*{message}"):
        parts_by(hospitals)


def test_a_series_names_the_hospital_of_each_id_whatever_its_order():
    records = Records(np.zeros((4, 2), np.float32), [0, 1, 0, 1], patients=list("abcd"))
    hospitals = pd.Series({"d": "south", "c": "south", "b": "north", "a": "north"})
    parts = records.split_by(hospitals)
    assert {name: sorted(part.ids) for name, part in parts.items()} == {"north": ["a", "b"], "south": ["c", "d"]}
