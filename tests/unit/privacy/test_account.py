"""The account of a cohort is complete, or it is refused by the name of what is missing."""

from __future__ import annotations

import multiprocessing
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.privacy import accounting
from zetadp.privacy.book import Book, claim, read_ledgers
from zetadp.privacy.budget import Permission
from zetadp.privacy.events import Event
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.ledger import Ledger, read_ledger
from zetadp.privacy.register import Register

ROUNDS = 4
HEADER = {
    "run": {"epsilon": "8"},
    "noise": "os",
    "unit": "patient",
    "delta": 1e-3,
    "training": {"rounds": ROUNDS, "clip": 1.0},
    "nodes": [{"name": "a", "population": 40, "expected": 10.0, "noise_multiplier": 2.0}],
}


def train(path: Path, rounds: int = ROUNDS) -> None:
    with Ledger(path) as ledger:
        ledger.start(HEADER)
        for number in range(rounds):
            ledger.record([Event("a", number, 40, 10.0, 1.0, NoisySum(0.25, 2.0))])
            ledger.note_sent(number, 0, "digest")


@pytest.fixture
def folder(tmp_path):
    """Three finished runs of two experiments on one cohort."""
    for name in ("first-8", "first-1", "second-8"):
        train(tmp_path / f"cohort/{name}.jsonl")
    return tmp_path / "cohort"


@pytest.mark.parametrize("lost", [["first-8"], ["second-8"], ["first-1", "second-8"]])
def test_deleted_ledgers_are_missed_by_name(folder, lost):
    for name in lost:
        (folder / f"{name}.jsonl").unlink()
    with pytest.raises(UserError) as refused:
        Book.read(folder).runs()
    for name in ("first-8", "first-1", "second-8"):
        assert (f"{name}.jsonl is missing" in str(refused.value)) == (name in lost)


@pytest.mark.parametrize("cut", range(1, 2 * ROUNDS + 1))
def test_a_ledger_cut_at_the_end_of_a_line_is_refused(folder, cut):
    path = folder / "second-8.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-cut]))
    read_ledger(path)  # the file alone shows nothing
    with pytest.raises(UserError, match=r"second-8\.jsonl has lost lines"):
        Book.read(folder).runs()
    with pytest.raises(UserError, match=r"second-8\.jsonl has lost lines"):
        read_ledgers([path])


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
    train(folder / "third.jsonl")
    assert len(Book.read(folder).runs()) == 4


def test_what_a_sealed_copy_holds_must_be_there(folder, tmp_path):
    sealed = tmp_path / "sealed.jsonl"
    sealed.write_bytes((folder / "first-8.jsonl").read_bytes())
    train(folder / "first-8.jsonl")  # made again since: the copy's lines are still there
    assert len(Book.read(folder, [sealed]).runs()) == 4
    # The whole folder was deleted, register and all, and the grid went on.
    for path in folder.iterdir():
        path.unlink()
    train(folder / "first-1.jsonl")
    with pytest.raises(UserError, match=r"lacks records of .*sealed\.jsonl"):
        Book.read(folder, [sealed]).runs()


def _train_many(place: int, folder: Path) -> None:
    for number in range(10):
        train(folder / f"{place}-{number}.jsonl", rounds=1)


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


# The same patients under two names


def index(path: Path, *train: str, test: tuple[str, ...] = ()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [("train", content) for content in train] + [("test", content) for content in test]
    pd.DataFrame(rows, columns=["part", "sha256"]).to_csv(path, index=False)
    return path


def test_patients_of_two_cohorts_are_found_and_their_runs_added(tmp_path):
    own = index(tmp_path / "own.csv", "x", "y", test=("z",))
    for name, table in {
        "own": own,
        "shares": index(tmp_path / "b.csv", "w", "y"),
        "other": index(tmp_path / "c.csv", "v", test=("x", "y")),  # test patients have no guarantee to lose
    }.items():
        claim(tmp_path / "ledgers" / name, table)
        claim(tmp_path / "ledgers" / name, table)
        train(tmp_path / f"ledgers/{name}/run.jsonl")
    book = Book.read(tmp_path / "ledgers/own")
    assert book.shared == {"shares": 1}
    assert [run.name for run in book.runs()] == ["run", "shares/run"]
    assert Book.read(tmp_path / "ledgers/shares").shared == {"own": 1}
    assert not Book.read(tmp_path / "ledgers/other").shared


def test_a_lost_secret_is_not_replaced_while_its_hashes_remain(tmp_path):
    """With another secret, patients of two cohorts would no longer be recognised, and the total would be too low."""
    table = index(tmp_path / "own.csv", "x")
    for name in ("own", "shares"):
        claim(tmp_path / "ledgers" / name, table)
    (tmp_path / "ledgers/shares/secret").unlink()
    with pytest.raises(UserError, match=r"shares/secret is missing"):
        Book.read(tmp_path / "ledgers/own")
    with pytest.raises(UserError, match=r"shares/secret is missing"):
        claim(tmp_path / "ledgers/shares", table)
    assert not (tmp_path / "ledgers/shares/secret").exists()


# Another training of a finished run


def test_another_attempt_is_refused_with_the_total_that_it_leads_to(folder):
    path = folder / "first-8.jsonl"
    costs = {runs: accounting.epsilon_rdp({NoisySum(0.25, 2.0): ROUNDS * runs}, 1e-3) for runs in (2, 3, 4)}
    costs[1] = accounting.epsilon({NoisySum(0.25, 2.0): ROUNDS}, 1e-3)  # the others were chosen after its results
    with Ledger(path) as ledger, pytest.raises(UserError) as refused:
        Permission(1e-3).check(ledger, HEADER)
    for runs in (1, 2, 3, 4):
        assert f" {rounded_up(costs[runs])}" in str(refused.value), (runs, str(refused.value))
    assert f"zetadp permit {path}" in str(refused.value)
    with Ledger(path) as ledger:
        ledger.permit()
        Permission(1e-3).check(ledger, HEADER)
    train(path)
    with Ledger(path) as ledger, pytest.raises(UserError, match="2 time"):
        Permission(1e-3).check(ledger, HEADER)
    assert len(Book.read(folder).runs()) == 4


def test_an_attempt_that_released_nothing_does_not_count(tmp_path):
    train(tmp_path / "run.jsonl", rounds=0)
    with Ledger(tmp_path / "run.jsonl") as ledger:
        Permission(1e-3).check(ledger, HEADER)
        ledger.start(HEADER)
        ledger.record([Event("a", 0, 40, 10.0, 1.0, NoisySum(0.25, 2.0))])
        with pytest.raises(UserError, match="1 time"):
            Permission(1e-3).check(ledger, HEADER)


def test_one_line_on_paper_shows_an_older_copy_of_the_whole_folder(folder, tmp_path):
    """By the two commands of docs/data_protection.md."""
    page = (Path(__file__).parents[3] / "docs/data_protection.md").read_text()
    note, look = re.findall(r"^((?:tail|grep) .*)$", page, flags=re.MULTILINE)
    (tmp_path / "state").mkdir()
    shutil.copytree(folder, tmp_path / "older")
    train(folder / "third-8.jsonl")
    place = tmp_path / "state/ledgers"

    def shell(command: str) -> str:
        return subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
        ).stdout.strip()

    folder.rename(place)
    digits = shell(note)
    assert re.fullmatch("[0-9a-f]{16}", digits)
    assert shell(look.replace("0123456789abcdef", digits)) == "1"
    train(place / "fourth-8.jsonl")
    assert shell(look.replace("0123456789abcdef", digits)) == "1"
    shutil.rmtree(place)
    (tmp_path / "older").rename(place)
    Book.read(place).runs()  # it looks complete
    assert shell(look.replace("0123456789abcdef", digits)) == "0"
