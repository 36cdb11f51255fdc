from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from zetadp.base.constraints import Count, check_fields
from zetadp.base.validation import (
    UserError,
    check_distinct,
    checked_name,
    in_range,
    one_of,
    positive,
    settings_of,
)


@pytest.mark.parametrize("value", [0, -1, -0.5, math.nan, math.inf, -math.inf, True])
def test_what_is_not_positive_and_finite_is_named(value):
    with pytest.raises(ValueError, match=f"Expected rounds > 0, found {value}"):
        positive(clip=1e-300, rounds=value)


@pytest.mark.parametrize("value", [-0.001, 1.001, math.nan])
def test_what_is_out_of_range_is_named(value):
    with pytest.raises(ValueError, match=f"Expected 0 <= drop_after <= 1, found {value}"):
        in_range(0, 1, smallest=0, largest=1, drop_after=value)


def test_an_unknown_choice_is_answered_with_the_nearest():
    with pytest.raises(
        ValueError, match=r"Expected head to be one of hidden, pooled, found 'poled'. Did you mean 'pooled'\?"
    ):
        one_of(("hidden", "pooled"), head="poled")
    with pytest.raises(ValueError, match=r"found 'xyz'\.$"):
        one_of(("hidden", "pooled"), head="xyz")
    with pytest.raises(ValueError, match="found None"):
        one_of(("hidden", "pooled"), head=None)
    one_of(("hidden", "pooled"), head="hidden")


@dataclass(frozen=True)
class Encoder:
    """Settings with one that is checked."""

    words: int = 1

    def __post_init__(self) -> None:
        positive(words=self.words)


@pytest.mark.parametrize(
    ("section", "fault"), [({"words": -1}, "Expected words > 0, found -1"), ({"word": 1}, "'word'")]
)
def test_a_setting_of_a_task_that_cannot_be_is_one_message_with_its_section(section, fault):
    with pytest.raises(UserError, match=rf"^task\.settings\.encoder: .*{fault}\.$"):
        settings_of(Encoder, section, "encoder")
    assert settings_of(Encoder, {"words": 2}, "encoder") == Encoder(2)


@dataclass(frozen=True)
class Plan:
    """Settings, one of which may be left out."""

    rounds: Count = 1
    rows: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_setting_may_be_null_only_where_its_type_says_so():
    assert Plan(rows=None).rows is None
    with pytest.raises(ValueError, match="Expected rounds >= 1, found None"):
        Plan(rounds=None)
    with pytest.raises(ValueError, match="Expected rows >= 1, found 0"):
        Plan(rows=0)


FOREIGN = [
    "", ".", "..", "../x", "a/b", "a\\b", "/a", ".hidden", "-rf", "a b", " a", "a\n", "a\nb", "a\x1b[2J", "a\u202eb",
    "m\u00fcller", "\u0661", "=1+1", "#a", "<b>", "a:b", "a\x00", "a" * 101, None, 7, True, ["a"],
]  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_name_of_another_party_that_is_more_than_a_name_is_refused_in_one_printable_line(name):
    with pytest.raises(UserError, match=r"^plan\.run: ") as caught:
        checked_name(name, "plan.run")
    assert str(caught.value).isprintable()


ALIKE = [("A", "A "), ("pat-a", "PAT-A"), ("M\u00fcller", "Mu\u0308ller"), ("A\u00a0", "A"), ("P\u200b1", "P1"),
         ("stra\u00dfe", "STRASSE"), ("pat 1", "pat1"), ("\uff21", "A")]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_names_that_differ_only_in_writing_are_no_two_for_persons(one, other):
    with pytest.raises(UserError, match=r"key\.tsv"):
        check_distinct([one, "B", other], "key.tsv")
