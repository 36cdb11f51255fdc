"""Whatever was released is counted, and what is said follows from what was recorded (kinds A and B)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from zetadp.base.validation import UserError
from zetadp.cli.commands import main
from zetadp.core.checkpoint import RunFiles
from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.promise import noise_of_plan
from zetadp.core.records import LabelledItems
from zetadp.core.settings import TrainingSettings
from zetadp.core.training import train
from zetadp.nn.settings import NetworkSettings
from zetadp.privacy import accounting
from zetadp.privacy.book import Book, claim, note_people
from zetadp.privacy.events import Event
from zetadp.privacy.exposure import recorded_runs, total
from zetadp.privacy.kinds import NoisySum
from zetadp.privacy.ledger import Ledger, read_ledger
from zetadp.privacy.statement import total_statement

DELTA, ROUNDS, SIGMA = 1e-3, 20, 2.0
EVENT = Event.poisson("n", population=10, expected=10, noise_multiplier=SIGMA, clip=1.0)
HEADER = {
    "noise": "os",
    "unit": "patient",
    "delta": DELTA,
    "training": {"rounds": ROUNDS, "clip": 1.0},
    "run": {"epsilon": "8"},
    "nodes": [{"name": "n", "population": 10, "expected": 10, "noise_multiplier": SIGMA}],
}
COST = accounting.epsilon({NoisySum(1.0, SIGMA): ROUNDS}, DELTA)


def record(path: Path, rounds: int = ROUNDS) -> None:
    with Ledger(path) as ledger:
        ledger.start(HEADER)
        for number in range(rounds):
            ledger.record([replace(EVENT, round=number)])


def spent(folder: Path, capsys: pytest.CaptureFixture[str]) -> float:
    """Return the total that `zetadp budget` prints, or raise what it says."""
    code = main(["budget", str(folder)])
    said = capsys.readouterr()
    if code:
        raise UserError(said.err)
    return float(said.out.split("epsilon ")[1].split()[0])


# Point 1: the union of what the register names and what the folder holds


@pytest.mark.parametrize("name", ["b.jsonl", "b.txt"])
def test_a_ledger_that_no_register_names_is_an_error(tmp_path, capsys, name):
    record(tmp_path / "here/a.jsonl")
    record(tmp_path / "elsewhere/b.jsonl")
    shutil.copy(tmp_path / "elsewhere/b.jsonl", tmp_path / "here" / name)
    with pytest.raises(UserError, match=name):
        spent(tmp_path / "here", capsys)


@pytest.mark.parametrize("command", ["ledger", "risk"])
def test_no_statement_is_made_of_a_ledger_beside_which_others_are_missing(tmp_path, capsys, command):
    record(tmp_path / "a.jsonl")
    record(tmp_path / "b.jsonl")
    (tmp_path / "b.jsonl").unlink()
    assert main([command, str(tmp_path / "a.jsonl")]) == 1
    assert "b.jsonl" in capsys.readouterr().err


def trained(ledger: Path, noise: str = "os", claimed: str = "8", people: int = 20, **limits: object) -> None:
    """Train a small network as a user of the library does."""
    items, labels = torch.randn(4 * people, 8, dtype=torch.complex64), torch.arange(4).repeat(people)
    plan = Plan(
        RunName("own", "central", claimed, 0),
        NetworkSettings("own"),
        TrainingSettings(5, images_per_patient=4, noise=noise),
        (NodeConstants("central", people, people / 2),),
        delta=DELTA,
        threat="central",
    )
    plan = plan.with_noise(noise_of_plan(plan))
    files = RunFiles(ledger, ledger.with_suffix(".checkpoint"), **limits)
    units = [range(4 * each, 4 * each + 4) for each in range(people)]
    train(plan, LabelledItems(items, labels), [units], files, model=Small())
    files.finish()


class Small(torch.nn.Module):
    """A network of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4, dtype=torch.complex64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs).abs()


def test_a_finished_run_whose_ledger_was_deleted_is_not_trained_again(tmp_path):
    path = tmp_path / "a/run.jsonl"
    trained(path)
    path.unlink()
    with pytest.raises(UserError, match=r"run\.jsonl"):
        trained(path)


def index(path: Path, *contents: str) -> Path:
    pd.DataFrame([("train", each) for each in contents], columns=["part", "sha256"]).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("lost", [["records"], ["records", "secret"]])
def test_lost_records_of_patients_hide_no_shared_patients(tmp_path, capsys, lost):
    table = index(tmp_path / "index.csv", "x", "y")
    for name in ("one", "two"):
        claim(tmp_path / "ledgers" / name, table)
        record(tmp_path / f"ledgers/{name}/run.jsonl")
    for name in lost:
        (tmp_path / "ledgers/one" / name).unlink()
    with pytest.raises(UserError, match="one"):
        spent(tmp_path / "ledgers/two", capsys)


# Point 2: limit and total are one computation


@pytest.mark.parametrize("name", ["records", "run.people"])
@pytest.mark.parametrize("content", ["", "0" * 64, "twice"])
def test_a_list_of_keyed_hashes_that_was_altered_hides_nobody(tmp_path, capsys, name, content):
    table = index(tmp_path / "index.csv", "x", "y")
    claim(tmp_path / "ledgers/one", table)
    note_people(tmp_path / "ledgers/one/run.jsonl", ["1" * 64, "2" * 64])
    record(tmp_path / "ledgers/one/run.jsonl")
    path = tmp_path / "ledgers/one" / name
    first, _ = path.read_text().split()
    path.write_text(f"{first}\n{first}\n" if content == "twice" else f"{content}\n{content}\n")
    with pytest.raises(UserError, match=name):
        spent(tmp_path / "ledgers/one", capsys)
    if name == "records":
        with pytest.raises(UserError, match="records"):
            claim(tmp_path / "ledgers/two", table)


def test_a_list_of_people_that_no_register_names_hides_nobody(tmp_path):
    """A ledger without a list may be about everybody of its cohort."""
    record(tmp_path / "one.jsonl")
    (tmp_path / "one.people").write_text("1" * 64)
    note_people(tmp_path / "two.jsonl", ["2" * 64])
    assert len(Book.read(tmp_path).runs(about=tmp_path / "two.jsonl")) == 1
    note_people(tmp_path / "one.jsonl", ["1" * 64])
    assert Book.read(tmp_path).runs(about=tmp_path / "two.jsonl") == []


def test_a_limit_counts_other_cohorts_with_the_same_patients(tmp_path):
    from zetadp.privacy.budget import Cap

    table = index(tmp_path / "index.csv", "x", "y")
    for name in ("one", "two"):
        claim(tmp_path / "ledgers" / name, table)
    trained(tmp_path / "ledgers/one/run.jsonl", cap=Cap(9, DELTA))
    with pytest.raises(UserError, match="cap"):
        trained(tmp_path / "ledgers/two/run.jsonl", cap=Cap(9, DELTA))


# Point 3: begun means spent


KILLED = f"""
import os, sys
from dataclasses import replace
from pathlib import Path
from test_book import EVENT, HEADER
from zetadp.privacy.ledger import Ledger
from zetadp.privacy.kinds import NoisySum
ledger = Ledger(Path(sys.argv[1]))
ledger.start(HEADER)
for number in range({ROUNDS - 5}):
    ledger.record([replace(EVENT, round=number)])
os.kill(os.getpid(), 9)
"""


def killed(path: Path) -> list[str]:
    """Record most rounds in a process that is killed, and return the ledger's lines."""
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-c", KILLED, str(path)], env=there, check=False)
    return path.read_text().splitlines(keepends=True)


@pytest.mark.parametrize("kept", [1, 5])
def test_an_attempt_that_was_killed_never_counts_less_than_it_declared(tmp_path, capsys, kept):
    path = tmp_path / "run.jsonl"
    lines = killed(path)
    assert spent(tmp_path, capsys) == pytest.approx(COST, rel=0.01)
    path.write_text("".join(lines[:kept]))
    if kept == 1:
        with pytest.raises(UserError, match=path.name):
            spent(tmp_path, capsys)
    else:
        assert spent(tmp_path, capsys) == pytest.approx(COST, rel=0.01)


# Point 5: a record is never written to a file that was replaced


def test_a_process_that_opened_a_ledger_before_it_was_mended_loses_no_record(tmp_path, monkeypatch):
    """It was slow between opening the file and taking the lock; meanwhile another one mended a torn line."""
    import zetadp.privacy.ledger as module

    path = tmp_path / "run.jsonl"
    record(path, rounds=1)
    with path.open("ab") as file:
        file.write(b'{"chain":"torn by a cra')
    real, mended = module.sync_folder, []

    def slow(folder: Path) -> None:
        if not mended:
            mended.append(True)
            with Ledger(path):
                pass
        real(folder)

    monkeypatch.setattr(module, "sync_folder", slow)
    try:
        with Ledger(path) as ledger:
            ledger.record([replace(EVENT, round=1)])
    except UserError:
        return
    assert replace(EVENT, round=1) in read_ledger(path)[-1].events


def test_nothing_is_recorded_in_a_ledger_that_was_put_in_the_place_of_the_open_one(tmp_path):
    path = tmp_path / "run.jsonl"
    record(path, rounds=1)
    shutil.copy(path, tmp_path / "older")
    with Ledger(path) as ledger:
        (tmp_path / "older").replace(path)
        with pytest.raises(UserError, match=r"run\.jsonl"):
            ledger.record([replace(EVENT, round=1)])


# Point 8: a release is bound to the account; what was chosen after results is summed by a filter


@pytest.mark.parametrize(("expected", "accountant"), [(10, "Gaussian"), (5, "Renyi")])
def test_attempts_that_were_chosen_after_results_are_summed_by_a_filter(tmp_path, capsys, expected, accountant):
    """Whether there was a second run was decided when the first one's models were known."""
    header = {**HEADER, "nodes": [{**HEADER["nodes"][0], "expected": expected}]}
    event = Event.poisson("n", population=10, expected=expected, noise_multiplier=SIGMA, clip=1.0)
    for name in ("a.jsonl", "b.jsonl"):
        with Ledger(tmp_path / name) as ledger:
            ledger.start(header)
            ledger.record([replace(event, round=number) for number in range(ROUNDS)])
    together = {NoisySum(expected / 10, SIGMA): 2 * ROUNDS}
    assert main(["ledger", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["private_rows"]
    of_filter = accounting.epsilon_rdp if expected < 10 else accounting.epsilon
    assert said["epsilon"] == pytest.approx(of_filter(together, DELTA), rel=1e-6)
    assert said["accountant"] == f"{accountant} privacy filter"


def test_a_series_that_was_declared_together_composes_as_declared(tmp_path):
    event = Event.poisson("n", population=10, expected=5, noise_multiplier=SIGMA, clip=1.0)
    nodes = [{**HEADER["nodes"][0], "expected": 5}]
    header = {**HEADER, "nodes": nodes, "series": {"name": "both", "runs": 2}}
    with Ledger(tmp_path / "a.jsonl") as ledger:
        ledger.start(header)
        ledger.record([replace(event, round=number) for number in range(ROUNDS)])
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    both = {NoisySum(0.5, SIGMA): 2 * ROUNDS}
    whole = [*recorded_runs(tmp_path / "a.jsonl"), *recorded_runs(tmp_path / "b.jsonl")]
    assert total(whole, DELTA) == pytest.approx(accounting.epsilon(both, DELTA))
    # One run more than declared, or one less beside a run of its own, was chosen after results.
    more = {NoisySum(0.5, SIGMA): 3 * ROUNDS}
    assert total([*whole, whole[0]], DELTA) == pytest.approx(accounting.epsilon_rdp(more, DELTA))
    alone = replace(whole[0], series=None)
    assert total([whole[1], alone], DELTA) == pytest.approx(accounting.epsilon_rdp(both, DELTA))


# Point 9: unit, delta and source of noise are the ledger's


def test_nobody_turns_a_seeded_ledger_into_a_guarantee(tmp_path):
    path = tmp_path / "run.jsonl"
    trained(path, noise="seeded")
    assert total_statement(recorded_runs(path))["guarantee"] == "simulated"


def test_an_attempt_that_was_closed_neither_continues_nor_releases(tmp_path):
    path = tmp_path / "run.jsonl"
    with Ledger(path) as ledger:
        ledger.start(HEADER)
        first = ledger.head
    with Ledger(path) as ledger:
        ledger._append({"kind": "closed"})  # a crash comes before the next attempt
    with Ledger(path) as ledger:
        assert ledger.knew(first)
        assert not ledger.knows(first)
        ledger.record([EVENT])
    with pytest.raises(UserError, match="was closed"):
        read_ledger(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("images_of_a_patient", 2.7),
        ("images_of_a_patient", True),
        ("images_of_a_patient", 0),
        ("dimension", -1),
        ("series", {"name": "x", "runs": -1}),
        ("series", {"name": "x", "runs": True}),
        ("delta", "0.001"),
        ("training", {"rounds": True, "clip": 1.0}),
        ("training", {"rounds": 2.5, "clip": 1.0}),
    ],
)
def test_constants_of_a_ledger_are_whole_numbers_where_they_count(tmp_path, capsys, key, value):
    with Ledger(tmp_path / "a.jsonl") as ledger:
        ledger.start({**HEADER, key: value})
        ledger.record([EVENT])
    with pytest.raises(UserError, match=r"a\.jsonl"):
        spent(tmp_path, capsys)
