"""The public constants that a user declares."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest

from zetadp.base.validation import UserError
from zetadp.training.public import Public

ONE = {"population": 800, "per_round": 100, "rounds": 50, "items_per_patient": 5}
SEVERAL = ONE | {"population": {"north": 300, "south": 500}, "clip": 1.0}


@pytest.mark.parametrize("given", [ONE, SEVERAL])
def test_constants_are_what_their_file_says(tmp_path, given):
    public = Public(**given)
    public.write(tmp_path / "public.json")
    assert {**json.loads((tmp_path / "public.json").read_text()), **given} == public.to_json()
    assert Public.read(tmp_path / "public.json") == pickle.loads(pickle.dumps(public)) == copy.deepcopy(public)


def test_constants_are_plain_numbers_that_nobody_changes():
    sizes = {"north": np.int64(300), "south": 500}
    public = Public(**SEVERAL | {"population": sizes, "per_round": np.float32(100), "rounds": np.int32(50)})
    sizes["north"] = 3
    assert public == Public(**SEVERAL)
    assert json.dumps(public.to_json()) == json.dumps(Public(**SEVERAL).to_json())
    with pytest.raises(TypeError):
        public.population["north"] = 3


WRONG = {
    "population": [0, {"": 800}, 40.5, "40", True, None, {}, {"north": 0}, {"no/rth": 800}, 10**10],
    "per_round": [801, 1e-12, 0, float("nan"), "100", None],
    "rounds": [0, 2.5, "3", True, None, 10**6],
    "items_per_patient": [0, 1.5, "2"],
    "clip": [0, -1, float("inf"), "small"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_wrong_constants_cannot_exist(tmp_path, key, value):
    with pytest.raises(UserError, match=rf"^{key}: Expected .*found"):
        Public(**ONE | {key: value})
    (tmp_path / "public.json").write_text(json.dumps(ONE | {key: value}))
    with pytest.raises(UserError, match=r"public\.json"):
        Public.read(tmp_path / "public.json")


@pytest.mark.parametrize(
    "content", [{}, {"population": 800, "per_round": 1}, ONE | {"round": 3}, ONE | {"patients": 3}]
)
def test_a_file_with_other_keys_is_refused(tmp_path, content):
    (tmp_path / "public.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"public\.json: Expected public constants with the keys population, per_round"):
        Public.read(tmp_path / "public.json")


def test_constants_are_said_in_words():
    assert str(Public(**SEVERAL)) == (
        "800 patients (300 at north, 500 at south), about 100 of them in each of 50 rounds. Gradient of each patient: "
        "mean over at most 5 items, norm at most 1."
    )
    assert str(Public(**ONE | {"per_round": 800})).startswith("800 patients, all of them in each of 50 rounds.")
