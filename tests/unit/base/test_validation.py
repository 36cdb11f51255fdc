from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pytest

from zetadp.base.epsilon import Delta
from zetadp.base.validation import Count, OneOf, Share, Within, check_fields, whole

HEADS = OneOf(("hidden", "pooled"))


@pytest.mark.parametrize(
    ("rule", "value", "wanted"),
    [
        *((Within(gt=0), value, "> 0") for value in (0, -0.5, math.nan, math.inf, -math.inf, True, "1", None)),
        *((Within(ge=0, le=1), value, ">= 0 and <= 1") for value in (-0.001, 1.001)),
        *((get_args(Delta)[1], value, ">= 1e-10 and <= 0.9999999999") for value in (0, 1)),
        (HEADS, "poled", r"one of hidden, pooled, found 'poled'\. Did you mean 'pooled'\?"),
        (HEADS, "xyz", r"one of hidden, pooled, found 'xyz'\.$"),
        (HEADS, None, "one of hidden, pooled"),
    ],
)
def test_a_value_that_a_rule_refuses_is_named_with_what_was_expected(rule, value, wanted):
    with pytest.raises(ValueError, match=f"^Expected setting .*{wanted}") as caught:
        rule.check("setting", value)
    assert caught.value.key == "setting"
    assert f"found {value!r}" in str(caught.value)


@dataclass(frozen=True)
class Settings:
    """Settings, some of which may be left out."""

    rounds: Count = 1
    rows: Count | None = None
    shares: tuple[Share, ...] = ()
    threat: Literal["local", "central"] = "local"

    def __post_init__(self) -> None:
        check_fields(self)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"rounds": None}, "rounds >= 1, found None"),
        ({"rounds": 1.5}, "rounds to be a whole number, found 1.5"),
        ({"rows": 0}, "rows >= 1, found 0"),
        ({"shares": (0.5, 2)}, "shares >= 0 and <= 1, found 2"),
        ({"threat": "locl"}, "threat to be one of local, central, found 'locl'"),
    ],
)
def test_every_field_and_entry_is_checked_as_its_type_says(given: dict[str, Any], fault: str):
    assert Settings(1, None, (0, 1), "central").rows is None
    with pytest.raises(ValueError, match=f"^Expected {fault}"):
        Settings(**given)


@pytest.mark.parametrize("value", [0, 8, 2.5, "3", None, True, 10**400])
def test_a_number_of_things_is_whole_and_in_its_range(value):
    with pytest.raises(ValueError, match=r"^Expected rounds "):
        whole(1, 7, rounds=value)
