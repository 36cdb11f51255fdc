from __future__ import annotations

import pytest
from federation.sites import make_plan

from zetadp.federation.ledgers import Mirror
from zetadp.privacy.ledger import Ledger

PLAN = make_plan()


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "own.jsonl"
    with Ledger(path) as ledger:
        for attempt in ("first", "second"):
            ledger.start({**PLAN.header(), "federation": attempt})
            for number in range(3):
                ledger.record([PLAN.event("node-01", number)])
                ledger.note_sent(number, 0, "digest")
    return path.read_text().splitlines()


@pytest.fixture
def mirror(tmp_path):
    return Mirror(tmp_path / "copies/node-01.jsonl")


def test_lines_are_kept_and_their_releases_known(mirror, lines):
    assert mirror.known == ""
    mirror.extend(lines[:4])
    assert mirror.of_attempt("first") == [PLAN.event("node-01", number) for number in (0, 1)]
    mirror.extend(lines[4:])
    assert mirror.path.read_text().splitlines() == lines
    assert mirror.of_attempt("second") == [PLAN.event("node-01", number) for number in range(3)]
    assert mirror.of_attempt("first") == []
    again = Mirror(mirror.path)
    assert (again.head, again.of_attempt("second")) == (mirror.head, mirror.of_attempt("second"))


def test_lines_that_were_seen_before_are_not_counted_again(mirror, lines):
    mirror.extend(lines[:10])
    mirror.extend(lines[6:])
    mirror.extend(lines)
    assert mirror.path.read_text().splitlines() == lines
    assert len(mirror.of_attempt("second")) == 3


def test_a_torn_line_of_the_node_counts_as_a_release(mirror, tmp_path):
    path = tmp_path / "torn.jsonl"
    with Ledger(path) as ledger:
        ledger.start({"federation": "x"})
        ledger.record([PLAN.event("node-01", 0)])
    with path.open("a") as file:
        file.write('{"chain"')
    Ledger(path).close()
    mirror.extend(path.read_text().splitlines())
    assert mirror.of_attempt("x") == [PLAN.event("node-01", 0)] * 2
