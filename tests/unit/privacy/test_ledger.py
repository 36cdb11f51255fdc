from __future__ import annotations

import resource
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from zetadp.base.validation import UserError
from zetadp.privacy import accounting
from zetadp.privacy.book import recorded_runs
from zetadp.privacy.events import Event
from zetadp.privacy.exposure import declared
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.ledger import Ledger, read_ledger
from zetadp.privacy.statement import run_statement


def event(number: int, node: str = "a", **changes: float) -> Event:
    constants = {"population": 44, "expected": 24, "noise_multiplier": 1.5, "clip": 2.0} | changes
    count = constants.pop("count", 1)
    return replace(Event.poisson(node, **constants), round=number, count=count)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledgers" / "run.jsonl"


def written(path, rounds: int = 4) -> list[Event]:
    """Write a ledger of one attempt and two nodes, and return its events."""
    events = []
    with Ledger(path) as ledger:
        ledger.start({"run": "x"})
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
    assert attempt.header["run"] == "x"


def test_rows_that_are_sent_together_are_one_entry_with_a_count(path):
    """A collector draws and releases 500 rows, with noise for each, and sends them at once."""
    rows = event(0, count=500)
    with Ledger(path) as ledger:
        ledger.start({"unit": "record", "delta": 1e-3, "noise": "os", "training": {"rounds": 3}})
        ledger.record([rows])
        assert ledger.holds(rows)
        assert not ledger.holds(event(0))
    assert len(path.read_text().splitlines()) == 2
    (run,) = recorded_runs(path)
    history = run.nodes["a"]
    assert (history.rounds, history.releases) == (1, 500)
    kind = NoisySum(24 / 44, 1.5)
    # Two more rounds are declared, each of as many rows.
    assert declared(history, run.declared_rounds) == {kind: 1500}
    assert accounting.compose([rows]) == {kind: 500}
    stated = run_statement(run, target_epsilon=1.0)
    assert stated["epsilon"] == accounting.epsilon({kind: 1500}, 1e-3)
    assert stated["rounds"] == {"declared": 3, "happened": 1, "replayed": 0}


def test_an_entry_that_says_more_than_this_version_knows_is_refused(path):
    with Ledger(path) as ledger:
        ledger.start({})
        entry = {"nodes": ["a"], **event(0).to_json(), "rows": 500}
        del entry["node"]
        with pytest.raises(UserError, match=r"key\(s\) rows"):
            ledger._append({"kind": "round", "releases": [entry]})
    with pytest.raises(UserError, match=r"key\(s\) rows, which this version"):
        read_ledger(path)


def test_attempts_are_kept_and_told_apart(path):
    first = written(path, 2)
    with Ledger(path) as ledger:
        assert len(ledger.attempts) == 1
        assert ledger.holds(first[0])
        assert not ledger.holds(first[0], 2)
        assert ledger.sent(0) == "digest 0"
        ledger.start({"run": "y"})
        assert not ledger.holds(first[0])
        assert ledger.sent(0) is None
        assert ledger.releases(0) == 0
        ledger.record([event(0)])
    attempts = read_ledger(path)
    assert [a.events for a in attempts] == [first, [event(0)]]
    assert [a.header["run"] for a in attempts] == ["x", "y"]


def test_an_edited_line_shows(path):
    written(path)
    text = path.read_text()
    for old, new in (("1.5", "9.5"), ('"population": 44', '"population": 54'), ("digest 2", "digest 7")):
        assert old in text
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=r"Line \d+ of the ledger .* edited or damaged"):
            read_ledger(path)
        with pytest.raises(UserError, match="edited or damaged"):
            Ledger(path)


def test_a_removed_line_shows(path):
    written(path)
    lines = path.read_text().splitlines(keepends=True)
    for gone in range(len(lines) - 1):  # the last line can go: what follows it is the checkpoint's business
        path.write_text("".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(UserError, match=f"Line {gone + 1} of the ledger"):
            read_ledger(path)


def test_an_inserted_or_moved_line_shows(path):
    written(path)
    lines = path.read_text().splitlines(keepends=True)
    for place in range(1, len(lines) + 1):
        path.write_text("".join([*lines[:place], lines[place - 1], *lines[place:]]))
        with pytest.raises(UserError, match=f"Line {place + 1} of the ledger"):
            read_ledger(path)
    path.write_text("".join([*lines[:2], lines[3], lines[2], *lines[4:]]))
    with pytest.raises(UserError, match="Line 3 of the ledger"):
        read_ledger(path)


@pytest.mark.parametrize(
    "junk", ["not json\n", "[]\n", "3\n", '{"chain": "0"}\n', '{"chain": "0", "entry": {}}\n', "\n"]
)
def test_lines_that_are_no_entries_show(path, junk):
    written(path)
    with path.open("a") as file:
        file.write(junk)
    with pytest.raises(UserError, match="Line 10 of the ledger"):
        read_ledger(path)


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
        ledger.start({})
        with pytest.raises(UserError, match="another process trains the same run"):
            Ledger(path)
        code = f"import pathlib; from zetadp.privacy.ledger import Ledger; Ledger(pathlib.Path({str(path)!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "UserError" in done.stderr
        assert "another process trains the same run" in done.stderr
        ledger.record([event(0)])
    with Ledger(path) as ledger:
        assert ledger.holds(event(0))


def test_a_disk_that_is_full_is_a_users_error_and_what_was_cut_off_is_counted(path):
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up() -> None:
        with Ledger(path) as ledger:  # leaving it closes the file, which must not hide the message
            ledger.start({})
            ledger.record([event(0)])
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, unlimited[1]))
            try:
                ledger.record([event(1)])
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    with pytest.raises(UserError, match=r"Cannot write the ledger .*: .*\. Nothing was released"):
        fill_up()
    (attempt,) = read_ledger(path)
    assert attempt.torn == 1
    assert attempt.releases() == [event(0), event(0)]


def test_a_release_recorded_twice_is_held_twice_and_its_messages_told_apart(path):
    with Ledger(path) as ledger:
        ledger.start({})
        for again in (0, 1):
            ledger.record([event(0)])
            ledger.note_sent(0, again, f"digest {again}")
    with Ledger(path) as ledger:
        assert ledger.holds(event(0), 2)
        assert not ledger.holds(event(0), 3)
        assert [ledger.sent(0, again) for again in (0, 1, 2)] == ["digest 0", "digest 1", None]


def test_a_kept_head_shows_that_lines_were_cut_off_since(path):
    heads = []
    with Ledger(path) as ledger:
        ledger.start({})
        identity = ledger.identity
        for number in range(3):
            ledger.record([event(number)])
            heads.append(ledger.head)
        assert all(ledger.knows(head) for head in heads)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match=r"run\.jsonl has lost lines"):
        Ledger(path)
    # An old copy of the register as well: only a head that is kept elsewhere shows it.
    register = path.with_name("register")
    register.write_text("".join(register.read_text().splitlines(keepends=True)[:-1]))
    with Ledger(path) as ledger:
        assert [ledger.knows(head) for head in heads] == [True, True, False]
        assert ledger.identity == identity
        ledger.record([event(2, clip=1.0)])  # another line in its place is another head
        assert not ledger.knows(heads[2])
        ledger.start({})
        assert ledger.identity != identity
        assert [ledger.knows(head) for head in heads] == [False] * 3
        assert [ledger.knew(head) for head in heads] == [True, True, False]
    with Ledger(path) as ledger:
        assert [ledger.knew(head) for head in heads] == [True, True, False]
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
