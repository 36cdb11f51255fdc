"""The book of a cohort is complete or refused by the name of what is missing, and says what was recorded."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ledger_builder import DECLARATION, DELTA, EVENT, FILTER, HEADER, KIND, ROUNDS, declared, index, record

from zetadp.account.attempts import FORMAT, read_ledger
from zetadp.account.book import Book, claim, note_people, recorded_runs
from zetadp.account.budget import Cap, CapError, check_permitted
from zetadp.account.declaration import Limit
from zetadp.account.exposure import total
from zetadp.account.ledger import Ledger
from zetadp.account.register import START, BrokenChainError, Link, Register, Secret, note
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.cli.commands import main


def spent(folder: Path, capsys: pytest.CaptureFixture[str]) -> float:
    """Return the total that `zetadp ledger` prints, or raise what it says."""
    code = main(["ledger", str(folder), "--json"])
    said = capsys.readouterr()
    if code:
        raise UserError(said.err)
    return json.loads(said.out)["private_rows"]["epsilon"]


@pytest.fixture
def folder(tmp_path):
    """Three finished runs of two experiments on one cohort."""
    for name in ("first-8", "first-1", "second-8"):
        record(tmp_path / f"cohort/{name}.jsonl")
    return tmp_path / "cohort"


@pytest.mark.parametrize("other", ["nowhere", ""])
def test_no_total_is_printed_for_a_folder_that_is_no_account(tmp_path, capsys, other):
    with pytest.raises(UserError, match="Expected"):
        spent(tmp_path / other, capsys)


def test_an_account_is_added_up_whatever_its_ledgers_are_called(folder, capsys):
    three = spent(folder, capsys)
    record(folder / "ledger.jsonl")  # the name of the copy in a run's folder
    assert spent(folder, capsys) > three
    shutil.copytree(folder, copies := folder.parent / "copies", ignore=shutil.ignore_patterns("register", "secret"))
    with pytest.raises(UserError, match="register"):
        spent(copies, capsys)


def test_the_declared_book_has_the_units_of_the_whole_one(tmp_path):
    for name in ("own", "shares"):
        for run in ("first", "second"):
            # A program that writes a ledger of its own declares no releases.
            record(tmp_path / name / f"{run}.jsonl", unit="record" if name == "shares" else "patient", releases=[])
        claim(tmp_path / name, index(tmp_path / f"{name}.csv", "x", name))
    with Ledger(tmp_path / "own/second.jsonl") as ledger:
        ledger.start(declared(unit="speaker"))  # another attempt, closed before a third one
        ledger.start(declared())
    for about in ("first", "second", "new"):
        ledger = tmp_path / f"own/{about}.jsonl"
        units = Book.declared(ledger).units(ledger)
        assert units == Book.read(ledger.parent).units(ledger)
        assert units == {"patient": "second", "record": "shares/second"}


@pytest.mark.parametrize("command", ["ledger", "budget"])
def test_runs_that_protect_different_units_have_no_total(folder, capsys, command):
    record(folder / "third-8.jsonl", unit="record")
    assert main([command, str(folder)]) == 1
    assert "one unit" in capsys.readouterr().err


@pytest.mark.parametrize("lost", [["first-8"], ["second-8"], ["first-1", "second-8"]])
def test_deleted_ledgers_are_missed_by_name(folder, lost):
    for name in lost:
        (folder / f"{name}.jsonl").unlink()
    with pytest.raises(UserError) as refused:
        Book.read(folder).runs()
    for name in ("first-8", "first-1", "second-8"):
        assert (f"{name}.jsonl is missing" in str(refused.value)) == (name in lost)
    with pytest.raises(UserError, match=f"{lost[0]}.jsonl is missing"):
        Ledger(folder / f"{lost[0]}.jsonl")


@pytest.mark.parametrize("cut", range(1, 2 * ROUNDS + 1))
def test_a_ledger_cut_at_the_end_of_a_line_is_refused(folder, cut):
    path = folder / "second-8.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-cut]))
    read_ledger(path)  # the file alone shows nothing
    with pytest.raises(UserError, match=r"second-8\.jsonl has lost lines"):
        Book.read(folder).runs()
    with pytest.raises(UserError, match=r"second-8\.jsonl has lost lines"):
        recorded_runs(path)


def test_a_lost_register_is_missed_as_well(folder):
    path = folder / "register"
    content = path.read_text()
    path.unlink()
    with pytest.raises(UserError, match=r"register is missing"):
        Book.read(folder).runs()
    # Its end is missed by the ledgers that began after it.
    for rest in (content.splitlines(keepends=True)[0], ""):
        path.write_text(rest)
        with pytest.raises(UserError, match="register has lost lines"):
            Book.read(folder).runs()
    path.write_text(content.replace("first-8", "first-9", 1))
    with pytest.raises(UserError, match=r"register .* edited or damaged"):
        Book.read(folder).runs()
    # A line that a crash tore stands for nothing, and the next one takes its place.
    path.write_text(content + '{"chain": "12')
    assert len(Book.read(folder).runs()) == 3
    record(folder / "third.jsonl")
    assert len(Book.read(folder).runs()) == 4


def test_what_a_sealed_copy_holds_must_be_there(folder, tmp_path):
    sealed = tmp_path / "sealed.jsonl"
    sealed.write_bytes((folder / "first-8.jsonl").read_bytes())
    record(folder / "first-8.jsonl")  # made again since: the copy's lines are still there
    assert len(Book.read(folder, [sealed]).runs()) == 4
    # The whole folder was deleted, register and all, and the grid went on.
    for path in folder.iterdir():
        path.unlink()
    record(folder / "first-1.jsonl")
    with pytest.raises(UserError, match=r"lacks lines of .*sealed\.jsonl"):
        Book.read(folder, [sealed]).runs()


def _train_many(place: int, folder: Path) -> None:
    for number in range(10):
        record(folder / f"{place}-{number}.jsonl", rounds=1)


def test_trainings_at_the_same_time_share_one_register(tmp_path):
    forking = multiprocessing.get_context("fork")
    processes = [forking.Process(target=_train_many, args=(place, tmp_path)) for place in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert Register.read(tmp_path).last.keys() == {
        f"{place}-{number}.jsonl" for place in range(4) for number in range(10)
    }
    assert len(Book.read(tmp_path).runs()) == 40


# What the register names and what the folder holds


@pytest.mark.parametrize("name", ["b.jsonl", "b.txt"])
def test_a_ledger_that_no_register_names_is_an_error(tmp_path, capsys, name):
    record(tmp_path / "here/a.jsonl")
    record(tmp_path / "elsewhere/b.jsonl")
    shutil.copy(tmp_path / "elsewhere/b.jsonl", tmp_path / "here" / name)
    with pytest.raises(UserError, match=name):
        spent(tmp_path / "here", capsys)


# The same patients under two names


def test_patients_of_two_cohorts_are_found_and_their_runs_added(tmp_path):
    own = index(tmp_path / "own.csv", "x", "y", test=("z",))
    for name, table in {
        "own": own,
        "shares": index(tmp_path / "b.csv", "w", "y"),
        "other": index(tmp_path / "c.csv", "v", test=("x", "y")),  # test patients have no guarantee to lose
    }.items():
        claim(tmp_path / "ledgers" / name, table)
        claim(tmp_path / "ledgers" / name, table)
        record(tmp_path / f"ledgers/{name}/run.jsonl")
    book = Book.read(tmp_path / "ledgers/own")
    assert book.shared == {"shares": 1}
    assert [run.name for run in book.runs()] == ["run", "shares/run"]
    # However they are named, and although each names the other, both count once, and their nodes stay apart.
    both = (tmp_path / "ledgers/own", tmp_path / "ledgers/shares")
    assert [run.name for run in Book.of(*both, both[1] / "../shares/run.jsonl").runs()] == ["run", "shares/run"]
    assert Book.read(tmp_path / "ledgers/shares").shared == {"own": 1}
    assert not Book.read(tmp_path / "ledgers/other").shared
    with (
        pytest.raises(CapError),
        Cap(1.001 * FILTER[2], DELTA).starting(tmp_path / "ledgers/own/new.jsonl", DECLARATION),
    ):
        pass  # one run here and one there: a third would be above the limit


@pytest.mark.parametrize(
    "damage", ["lost", "lost with its secret", "emptied", "altered", "older", "without its secret"]
)
def test_a_damaged_register_hides_no_shared_patients(tmp_path, capsys, damage):
    """Also an older copy: a later attempt names the register that had the patients who came later."""
    cohort, table = tmp_path / "ledgers/one", index(tmp_path / "index.csv", "x", "y")
    claim(cohort, index(tmp_path / "first.csv", "x"))
    record(cohort / "run.jsonl")
    older = (cohort / "register").read_text()
    for name in ("one", "two"):
        claim(tmp_path / "ledgers" / name, table)
        record(tmp_path / f"ledgers/{name}/run.jsonl")
    register = cohort / "register"
    altered = register.read_text().replace('"records": ["', '"records": ["0', 1)
    if damage.startswith("lost"):
        register.unlink()
    elif damage != "without its secret":
        register.write_text({"emptied": "", "altered": altered, "older": older}[damage])
    if damage.endswith("its secret"):
        register.with_name("secret").unlink()
    with pytest.raises(UserError, match="one"):
        spent(tmp_path / "ledgers/two", capsys)
    with pytest.raises(UserError, match="one"):
        claim(tmp_path / "ledgers/three", table)
    assert register.with_name("secret").exists() == (not damage.endswith("its secret"))  # another one knows nobody


def test_a_run_of_another_cohort_that_begins_meanwhile_is_no_loss(tmp_path, monkeypatch):
    one, real, begun = tmp_path / "ledgers/one", Register.read, []
    claim(one, index(tmp_path / "first.csv", "x"))

    def read(folder: Path) -> Register:
        found = real(folder)
        if folder == one and not begun:
            begun.append(True)
            claim(one, index(tmp_path / "more.csv", "x", "y"))
            record(one / "run.jsonl")
        return found

    monkeypatch.setattr(Register, "read", read)
    claim(tmp_path / "ledgers/two", index(tmp_path / "second.csv", "x"))
    assert begun
    assert real(one).shares == {"two": 1}


def test_a_register_of_another_version_is_not_called_damaged(tmp_path):
    note(tmp_path, {"list": "records", "count": 1, "digest": "0" * 64})
    with pytest.raises(UserError, match="version of zetadp that wrote it"):
        Book.read(tmp_path)


def test_a_ledger_without_a_list_of_people_may_be_about_everybody(tmp_path):
    anybody, two, three = (tmp_path / f"{name}.jsonl" for name in ("one", "two", "three"))
    record(anybody)
    note_people(two, ["2"])
    note_people(three, ["3"])
    note_people(three, ["4"])  # an earlier list stays
    record(three)
    assert len(Book.read(tmp_path).runs(about=two)) == 1
    note_people(anybody, ["1"])  # it has lines, so it stays anybody's
    assert len(Book.read(tmp_path).runs(about=two)) == 1
    for others in (["2"], ["3", "2"], []):
        with pytest.raises(UserError, match="found others"):
            note_people(three, others)
    assert Book.read(tmp_path).people[three.name] == {*map(Secret.of(tmp_path).tag, "34")}


# A record is never written to a file that was replaced


def test_nothing_is_recorded_in_a_ledger_that_was_put_in_the_place_of_the_open_one(tmp_path):
    path = tmp_path / "run.jsonl"
    record(path, rounds=1)
    shutil.copy(path, tmp_path / "older")
    with Ledger(path) as ledger:
        (tmp_path / "older").replace(path)
        with pytest.raises(UserError, match=r"run\.jsonl"):
            ledger.record([replace(EVENT, round=1)])


def test_a_file_system_without_links_is_used_and_one_without_locks_is_refused(tmp_path, monkeypatch):
    """Secrets need no hard link. Without locks two processes could release the same round."""

    def refused(*_, **__):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", refused)
    record(tmp_path / "a/run.jsonl")
    assert len(Book.read(tmp_path / "a").runs()) == 1
    assert (tmp_path / "a/secret").stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(fcntl, "flock", refused)
    for use in (
        lambda: record(tmp_path / "b/run.jsonl"),
        lambda: Cap(1.0, DELTA).starting(tmp_path / "a/x.jsonl", DECLARATION).__enter__(),
    ):
        with pytest.raises(UserError, match=r"has no locks \(flock\).*Nothing was released.*local disk"):
            use()
    assert not (tmp_path / "b/secret").exists()


# A release is bound to the account; what was chosen after results is summed by a filter


@pytest.mark.parametrize("expected", [40, 10])
def test_attempts_that_were_chosen_after_results_are_summed_by_a_filter(tmp_path, capsys, expected):
    """Whether there was a second run was decided when the first one's models were known."""
    event = replace(EVENT, expected=expected, kind=NoisySum(expected / 40, 2.0))
    for name in ("a.jsonl", "b.jsonl"):
        record(tmp_path / name, event=event)
    together = {event.kind: 2 * ROUNDS}
    assert main(["ledger", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["private_rows"]
    of_filter = composition.epsilon_rdp if expected < 40 else composition.epsilon
    assert said["spent"] == pytest.approx(of_filter(together, DELTA), rel=1e-6)
    assert said["epsilon"] == pytest.approx(composition.epsilon_any_time(together, DELTA), rel=1e-6)
    assert said["accountant"] == "Renyi privacy odometer"


def test_the_command_prints_the_pair_of_the_limit_under_which_runs_began(tmp_path, capsys):
    """Attempts record the limit in their first line: nobody can say afterwards that there was one."""
    cap = Cap(4.0, DELTA)
    for name in ("a", "b"):
        with cap.starting(tmp_path / f"{name}.jsonl", DECLARATION) as declaration:
            record(tmp_path / f"{name}.jsonl", **declaration.to_json())
    assert main(["budget", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"spent so far: epsilon {rounded_up(FILTER[2])} at delta 0.001, in 2 runs" in printed
    assert "The promise is epsilon 4 at delta 0.001, the limit that was set before the first run." in printed
    with Ledger(tmp_path / "b.jsonl") as ledger:
        ledger.resume(ROUNDS, Limit(5.0, DELTA))  # the limit was raised meanwhile
    assert main(["budget", str(tmp_path)]) == 0
    assert "is not a promise" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["os", "os"], None),
        (["seeded"], "This run used seeded noise"),
        (["os", "seeded"], "1 of these 2 runs used seeded noise"),
        (["seeded", "seeded"], "All of these runs used seeded noise"),
    ],
)
def test_a_total_names_its_runs_with_seeded_noise(tmp_path, capsys, sources, expected):
    for number, noise in enumerate(sources):
        record(tmp_path / f"{number}.jsonl", noise=noise)
    assert main(["budget", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (expected is None and "seeded" not in printed) or f"{expected}, which protects nobody" in printed


def test_a_series_that_was_declared_together_composes_as_declared(tmp_path):
    record(tmp_path / "a.jsonl", series={"name": "both", "runs": 2})
    whole = 2 * recorded_runs(tmp_path / "a.jsonl")
    assert total(whole, DELTA) == pytest.approx(composition.epsilon({KIND: 2 * ROUNDS}, DELTA))
    # One run more than declared, or one less beside a run of its own, was chosen after results.
    assert total([*whole, whole[0]], DELTA) == pytest.approx(FILTER[3])
    alone = replace(whole[0], series=None)
    assert total([whole[1], alone], DELTA) == pytest.approx(FILTER[2])


def test_an_attempt_that_was_closed_neither_continues_nor_releases(tmp_path):
    path = tmp_path / "run.jsonl"
    with Ledger(path) as ledger:
        ledger.start(DECLARATION)
        first = ledger.head
    with Ledger(path) as ledger:
        ledger._append({"kind": "closed"})  # a crash comes before the next attempt
    with Ledger(path) as ledger:
        assert ledger.ever_had_head(first)
        assert not ledger.has_head(first)
        with pytest.raises(BrokenChainError, match="was closed"):
            ledger.record([EVENT])
    with pytest.raises(UserError, match="was closed"):
        read_ledger(path)


@pytest.mark.parametrize(
    "changes",
    [
        *({"images_of_a_patient": value} for value in (2.7, True, 0, "some")),
        *({"series": {"name": "x", "runs": value}} for value in (-1, True)),
        *({"training": {"rounds": value}} for value in (True, 2.5, 0, "many")),
        *({"delta": value} for value in ("0.001", 2)),
        {"sums": {"colluding": "many"}},
        {"noise": "laser"},
        {"unit": "image"},
        {"threat": "masked_sums"},
    ],
    ids=str,
)
def test_a_declaration_that_cannot_be_is_one_message_with_the_ledger(tmp_path, capsys, changes):
    begin = {"kind": "start", "format": FORMAT, "attempt": 1, "nonce": "0", "register": START}
    (tmp_path / "a.jsonl").write_text(f"{Link.after(START, {**begin, **HEADER, **changes}).text}\n")
    with pytest.raises(UserError, match=r"a\.jsonl"):
        spent(tmp_path, capsys)


# Another training of a finished run


def test_another_attempt_is_refused_with_the_total_that_it_leads_to(folder):
    path = folder / "first-8.jsonl"
    with Ledger(path) as ledger, pytest.raises(UserError) as refused:
        check_permitted(ledger, DECLARATION)
    for runs in (1, 2, 3, 4):
        assert f" {rounded_up(FILTER[runs])}" in str(refused.value), (runs, str(refused.value))
    # Whoever only copied the results must not pay for them again: what costs nothing comes first, and why it came.
    wanted = (
        "No setting changed",
        "have new times",
        "at no privacy cost",
        "--touch",
        "backup",
        f"zetadp permit {path}",
    )
    assert sorted(wanted, key=str(refused.value).index) == list(wanted)
    changed = declared(training={"rounds": ROUNDS + 1})
    with Ledger(path) as ledger, pytest.raises(UserError, match=r"training\.rounds \(then 6, now 7\)\. Undo that"):
        check_permitted(ledger, changed)
    with Ledger(path) as ledger:
        ledger.permit()
        check_permitted(ledger, DECLARATION)
        ledger.start(DECLARATION)
    with Ledger(path) as ledger:  # an attempt that released nothing does not count
        check_permitted(ledger, DECLARATION)
    record(path)
    with Ledger(path) as ledger, pytest.raises(UserError, match="2 attempt"):
        check_permitted(ledger, DECLARATION)
    assert len(Book.read(folder).runs()) == 4


def test_one_line_on_paper_shows_an_older_copy_of_the_whole_folder(folder, tmp_path):
    """By the two commands of docs/data_protection.md."""
    page = (Path(__file__).parents[3] / "docs/data_protection.md").read_text()
    note, look = re.findall(r"^((?:tail|grep) .*)$", page, flags=re.MULTILINE)
    (tmp_path / "state").mkdir()
    shutil.copytree(folder, tmp_path / "older")
    record(folder / "third-8.jsonl")
    place = tmp_path / "state/ledgers"

    def shell(command: str) -> str:
        return subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
        ).stdout.strip()

    folder.rename(place)
    digits = shell(note)
    assert re.fullmatch("[0-9a-f]{16}", digits)
    assert shell(look.replace("0123456789abcdef", digits)) == "1"
    record(place / "fourth-8.jsonl")
    assert shell(look.replace("0123456789abcdef", digits)) == "1"
    shutil.rmtree(place)
    (tmp_path / "older").rename(place)
    Book.read(place).runs()  # it looks complete
    assert shell(look.replace("0123456789abcdef", digits)) == "0"
