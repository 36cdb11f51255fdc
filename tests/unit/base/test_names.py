from __future__ import annotations

import pytest

from zetadp.base.names import check_distinct, checked_name
from zetadp.base.validation import UserError

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
