from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from ledger_builder import DECLARATION, declared, poisson

from zetadp.account.attempts import read_ledger
from zetadp.account.ledger import Ledger
from zetadp.account.register import Link
from zetadp.accounting.events import Event
from zetadp.base.validation import UserError


def event(number: int, node: str = "a", **changes: float) -> Event:
    constants = {"population": 44, "expected": 24, "noise_multiplier": 1.5, "clip": 2.0} | changes
    count = constants.pop("count", 1)
    return replace(poisson(node, **constants), round=number, count=count)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledgers" / "run.jsonl"


def written(path, rounds: int = 4) -> list[Event]:
    """Write a ledger of one attempt and two nodes, and return its events."""
    events = []
    with Ledger(path) as ledger:
        ledger.start(declared(run="x"))
        for number in range(rounds):
            pair = [event(number), event(number, "b", population=45)]
            ledger.record(pair)
            ledger.note_sent(number, 0, f"digest {number}")
            events += pair
    return events


def test_everything_recorded_is_read_again(path):
    events = written(path)
    (attempt,) = read_ledger(path)
    assert attempt.events == events
    assert attempt.releases() == events
    assert attempt.sent == {(number, 0): f"digest {number}" for number in range(4)}
    assert attempt.declaration.run == "x"


ENTRY = {key: value for key, value in event(0).to_json().items() if key != "node"}


@pytest.mark.parametrize(
    ("releases", "words"),
    [
        ({}, "lacks the key 'releases'"),
        ({"releases": [{"nodes": ["a"], "round": 0}]}, "lacks the key 'clip'"),
        ({"releases": [{"nodes": ["a"], **ENTRY, "rows": 500}]}, "rows"),
        ({"releases": 3}, "holds a value"),
    ],
)
def test_a_line_that_says_less_or_more_than_this_version_knows_is_refused(path, releases, words):
    with Ledger(path) as ledger:
        ledger.start(DECLARATION)
        head = ledger.head
    with path.open("a") as file:
        file.write(f"{Link.after(head, {'kind': 'round', **releases}).text}\n")
    with pytest.raises(UserError, match=rf"Line 2 of the ledger .*{words}"):
        read_ledger(path)


def test_attempts_are_kept_and_told_apart(path):
    first = written(path, 2)
    with Ledger(path) as ledger:
        assert len(ledger.attempts) == 1
        assert ledger.holds(first[0])
        assert not ledger.holds(first[0], 2)
        assert ledger.sent(0) == "digest 0"
        ledger.start(declared(run="y"))
        assert not ledger.holds(first[0])
        assert ledger.sent(0) is None
        assert ledger.releases(0) == 0
        ledger.record([event(0)])
    attempts = read_ledger(path)
    assert [a.events for a in attempts] == [first, [event(0)]]
    assert [a.declaration.run for a in attempts] == ["x", "y"]


def test_every_line_that_is_edited_removed_inserted_moved_or_no_entry_is_named(path):
    written(path)
    lines = path.read_text().splitlines(keepends=True)
    altered = [(gone + 1, [*lines[:gone], *lines[gone + 1 :]]) for gone in range(len(lines) - 1)]
    altered += [(place + 1, [*lines[:place], lines[place - 1], *lines[place:]]) for place in range(1, len(lines) + 1)]
    altered += [(3, [*lines[:2], lines[3], lines[2], *lines[4:]])]
    for number, old, new in (
        (2, "1.5", "9.5"),
        (4, '"population": 44', '"population": 54'),
        (7, "digest 2", "digest 7"),
    ):
        assert old in lines[number - 1]
        altered.append((number, [*lines[: number - 1], lines[number - 1].replace(old, new), *lines[number:]]))
    for junk in ("not json", "[]", "3", '{"chain": "0"}', '{"chain": "0", "entry": {}}', ""):
        altered.append((len(lines) + 1, [*lines, f"{junk}\n"]))
    for number, content in altered:
        path.write_text("".join(content))
        with pytest.raises(UserError, match=rf"Line {number} of the ledger .* edited or damaged"):
            read_ledger(path)
    with pytest.raises(UserError, match="edited or damaged"):
        Ledger(path)


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_last_line_is_a_counted_release_and_the_file_goes_on(path, kept):
    events = written(path)
    whole = path.read_bytes()
    last = [line for line in whole.splitlines(keepends=True) if b'"round", "releases"' in line][-1]
    path.write_bytes(whole + last[:kept])
    (attempt,) = read_ledger(path)
    assert attempt.torn == 1
    assert Counter(attempt.releases()) == Counter([*events, events[-2], events[-1]])
    with Ledger(path) as ledger:
        assert all(ledger.holds(entry) for entry in events)
        ledger.record([event(4), event(4, "b", population=45)])
    (attempt,) = read_ledger(path)
    assert attempt.torn == 1
    assert len(attempt.releases()) == len(events) + 4
    # Every node pays for it once.
    assert [e.node for e in attempt.releases()].count("a") == [e.node for e in attempt.releases()].count("b") == 6


def test_a_second_user_is_refused_while_the_first_has_the_file_open(path):
    with Ledger(path) as ledger:
        ledger.start(DECLARATION)
        with pytest.raises(UserError, match="another process trains the same run"):
            Ledger(path)
        ledger.record([event(0)])
    with Ledger(path) as ledger:
        assert ledger.holds(event(0))


def test_a_kept_head_shows_that_lines_were_cut_off_since(path):
    heads = []
    with Ledger(path) as ledger:
        ledger.start(DECLARATION)
        identity = ledger.identity
        for number in range(3):
            ledger.record([event(number)])
            heads.append(ledger.head)
        assert all(ledger.has_head(head) for head in heads)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match=r"run\.jsonl has lost lines"):
        Ledger(path)
    # An old copy of the register as well: only a head that is kept elsewhere shows it.
    register = path.with_name("register")
    register.write_text("".join(register.read_text().splitlines(keepends=True)[:-1]))
    with Ledger(path) as ledger:
        assert [ledger.has_head(head) for head in heads] == [True, True, False]
        assert ledger.identity == identity
        ledger.record([event(2, clip=1.0)])  # another line in its place is another head
        assert not ledger.has_head(heads[2])
        ledger.start(DECLARATION)
        assert ledger.identity != identity
        assert [ledger.has_head(head) for head in heads] == [False] * 3
        assert [ledger.ever_had_head(head) for head in heads] == [True, True, False]
    with Ledger(path) as ledger:
        assert [ledger.ever_had_head(head) for head in heads] == [True, True, False]
    assert heads[1] in read_ledger(path)[0].heads


@pytest.mark.parametrize("moment", ["write_bytes", "replace"])
def test_a_torn_line_stays_counted_when_its_mending_is_interrupted(path, monkeypatch, moment):
    written(path, 2)
    path.write_bytes(path.read_bytes() + b'{"chain": "ab')
    before = len(read_ledger(path)[0].releases())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(type(path), moment, fail)
        with pytest.raises(UserError, match="No space left"):
            Ledger(path)
    assert len(read_ledger(path)[0].releases()) == before
    with Ledger(path) as ledger:
        ledger.record([event(2)])
        with pytest.raises(UserError, match="another process"):
            Ledger(path)
    assert len(read_ledger(path)[0].releases()) == before + 1
