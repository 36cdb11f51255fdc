"""Whether a finished run can be verified by anybody, and whether every alteration is found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commanded import ended, mistake
from hospitals.sites import sums_plan
from ledger_builder import record

import zetadp
from zetadp.account.attempts import read_ledger
from zetadp.account.ledger import Ledger
from zetadp.account.register import START, Link, follow
from zetadp.account.statement import account_run, last_statement
from zetadp.account.verification import recomputed_epsilon, verify_run
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.threat import IF_HIDDEN
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import read_json, write_json, write_text
from zetadp.base.tensors import load_tensors, save_tensors
from zetadp.base.validation import UserError
from zetadp.cli.commands import main

FILES = ("model.safetensors", "plan.json", "ledger.jsonl", "privacy.json", "privacy.txt")
PEOPLE = 12


def sealed(run: Path) -> None:
    """Seal a run, as whoever forges one can do as well."""
    RunFolder(run).write_seal()


def faults(run: Path, ledgers: Path | None = None) -> list[str]:
    """Return what is wrong, for somebody who noted the head of the sealed ledger or has the live ones."""
    noted = read_ledger(run / "ledger.jsonl")[-1].last
    return [check.what for check in verify_run(run, ledgers, noted) if check.fault]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder, items = tmp_path_factory.mktemp("run"), torch.randn(4 * PEOPLE, 6, generator=torch.manual_seed(0))
    records = zetadp.Records(items, torch.arange(4).repeat(PEOPLE), patients=[n // 4 for n in range(4 * PEOPLE)])
    public = zetadp.Public(population=PEOPLE, per_round=PEOPLE / 2, rounds=5, items_per_patient=4)
    guarantee = {"epsilon": 8, "delta": 1e-3, "seed": 0}
    run = zetadp.private(torch.nn.Linear(6, 4), records, public, folder=folder / "run", **guarantee)
    return run.train().folder


@pytest.fixture
def run(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "run"))


def test_a_run_as_it_was_left_is_in_order(original, capsys):
    assert main(["verify", str(original), "--ledgers", str(original.parent / "ledgers")]) == 0
    said = capsys.readouterr().out
    *checks, last = said.splitlines()
    assert said.count("ok: ") == len(checks) >= len(FILES) + 5
    assert last.startswith("not checked, as the seal does not name them: ")
    assert re.match(
        r"ok: this is the run .*: epsilon [78]\S* at delta 0.001 for each patient, guarantee: simulated\n", said
    )


def test_files_that_no_seal_names_are_named_as_not_checked(run, original, capsys):
    """The page for data-protection officers is written after the seal, and anybody can alter it."""
    (run / "risk.html").write_text("nobody is at risk")
    noted = read_ledger(run / "ledger.jsonl")[-1].last
    assert main(["verify", str(run), "--head", noted]) == 0
    (line,) = re.findall(r"^not checked.*: (.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert "risk.html" in line.split(", ")
    assert not set(FILES) & set(line.split(", "))


def test_a_run_in_a_folder_that_names_another_epsilon_is_wrong(original, tmp_path, capsys):
    """A run at epsilon 8 that somebody copied over the one at epsilon 1 is unchanged, and not what its path says."""
    run = json.loads((original / "plan.json").read_text())["run"]
    path = f"{run['network']}/{run['arm']}/eps-{{}}/seed-{run['seed']}"
    for name, code in (("eps-1", 0), (path.format(8), 0), (path.format(1), 1)):  # the first is a user's own name
        copied = Path(shutil.copytree(original, tmp_path / name))
        assert main(["verify", str(copied), "--ledgers", str(original.parent / "ledgers")]) == code
        first, *others = capsys.readouterr().out.splitlines()
        assert not any(line.startswith("wrong") for line in others)
    assert first.startswith("wrong: this is the run")
    assert first.endswith("its folder says epsilon 1, and its ledger says 8")


@pytest.mark.parametrize("name", [*FILES, "seal.json"])
@pytest.mark.parametrize("place", [0.1, 0.9])
def test_one_altered_byte_of_any_file_is_found(run, name, place, capsys):
    content = bytearray((run / name).read_bytes())
    at = int(place * len(content))
    content[at] ^= 1
    (run / name).write_bytes(bytes(content))
    assert main(["verify", str(run)]) == 1
    heard = capsys.readouterr()
    assert "wrong: " in heard.out
    assert "Do not rely on it" in heard.err
    assert "Traceback" not in heard.err


HEADS = {
    "cut": b"abc",
    "beyond memory": b"\xff" * 8 + b"{}",
    "no JSON": (2).to_bytes(8, "little") + b"{{",
    "no text": (2).to_bytes(8, "little") + b"\xff\xfe",
    "no head": (2).to_bytes(8, "little") + b"{}",
    "a list": (36).to_bytes(8, "little") + b'{"__metadata__": {"content": "[1]"}}',
}


@pytest.mark.parametrize("damage", [None, *HEADS])
def test_a_missing_or_damaged_model_is_one_clear_message(run, damage):
    model = run / "model.safetensors"
    if damage is None:
        model.unlink()
    else:
        model.write_bytes(HEADS[damage])
    with pytest.raises(UserError, match=r"model\.safetensors"):
        account_run(run / "ledger.jsonl", model, name="run")
    assert OF_LEDGER in faults(run)


def restated(run: Path, **changes: object) -> None:
    """Write the statement that whoever forges one would like to have, and seal it."""
    attempts = read_ledger(run / "ledger.jsonl")
    forged = [replace(each, declaration=replace(each.declaration, **changes)) for each in attempts]
    statement = last_statement(forged, "run")
    write_json(run / "privacy.json", statement)
    write_text(run / "privacy.txt", statement.text)
    sealed(run)


def chained_again(run: Path, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Change the lines of a ledger, make its chain anew, and let the model name its head."""
    head, lines = START, []
    for link in follow((run / "ledger.jsonl").read_bytes().splitlines()):
        entry = change(json.loads(json.dumps(link.entry)))
        if entry is None:
            continue
        again = Link.after(head, entry)
        head = again.head
        lines.append(again.text)
    (run / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    tensors, content = load_tensors(run / "model.safetensors")
    save_tensors(run / "model.safetensors", tensors, {**content, "ledger_head": head})


STATED, COMPUTED = "the statement follows from the ledger", "another computation finds no larger epsilon"
PLANNED, OF_LEDGER = "plan and ledger say the same", "the model names a line of the ledger"
OUTSIDE = "the ledger holds the head that was noted elsewhere"


def edited(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], object]:
    """Return what changes the content of a JSON file of a run."""
    return lambda run: write_json(run / name, change(read_json(run / name)))


def cut_off(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run / "ledger.jsonl").write_text("".join(lines[:-3]))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (edited("privacy.json", lambda now: {**now, "epsilon": 0.9 * now["epsilon"]}), {STATED, COMPUTED}),
        (edited("privacy.json", lambda now: {k: now[k] for k in now if k != "records_of_one_person"}), {STATED}),
        (lambda run: restated(run, cohort_unit="record"), {STATED}),
        (lambda run: restated(run, delta=0.3), {STATED, COMPUTED}),
        (edited("plan.json", lambda now: {**now, "threat": "masked_sums"}), {PLANNED}),
        (cut_off, {OF_LEDGER, STATED}),
    ],
    ids=["smaller epsilon", "statement lacks a key", "unit", "delta", "plan", "cut off"],
)
def test_an_alteration_is_found_though_the_run_is_sealed_again(run, change, found):
    change(run)
    sealed(run)
    assert set(faults(run)) == found


def louder(entry: dict[str, Any]) -> dict[str, Any]:
    for release in entry.get("releases", ()):
        release["kind"]["noise_multiplier"] *= 10
    for node in entry.get("nodes", ()) if entry["kind"] == "start" else ():
        node["noise_multiplier"] *= 10
    return entry


def unseeded(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "noise": "os"} if entry["kind"] == "start" else entry


def shorter(entry: dict[str, Any]) -> dict[str, Any] | None:
    if entry.get("round", 0) > 0 or any(release["round"] > 0 for release in entry.get("releases", ())):
        return None
    return {**entry, "training": {**entry["training"], "rounds": 1}} if entry["kind"] == "start" else entry


@pytest.mark.parametrize("change", [louder, unseeded, shorter])
def test_a_chain_made_anew_is_not_the_one_that_the_register_names(original, run, change):
    chained_again(run, change)
    plan, declaration = read_json(run / "plan.json"), read_ledger(run / "ledger.jsonl")[-1].declaration
    training = {**plan["training"], **declaration.training, "noise": declaration.noise}
    write_json(run / "plan.json", {**plan, "training": training, "nodes": declaration.nodes})
    restated(run)
    noted = read_ledger(original / "ledger.jsonl")[-1].last
    assert [check.what for check in verify_run(run, head=noted) if check.fault] == [OUTSIDE]
    ledgers = original.parent / "ledgers"
    assert main(["verify", str(run), "--ledgers", str(ledgers)]) == 1
    assert main(["verify", str(run)]) == 1  # nothing vouches for the ledger


@pytest.mark.parametrize(
    ("releases", "delta"),
    [
        ([(24 / 44, 42.57, 917)], 1e-3),
        ([(1.0, 2.0, 20)], 1e-3),
        ([(0.01, 1.0, 1000)], 1e-5),
        ([(0.5, 0.3, 10)], 1e-6),
        ([(1.0, 0.1, 10)], 1e-3),
        ([(0.3, 1.1, 2), (0.7, 1.6, 3), (1.0, 4.0, 5)], 1e-3),
    ],
)
def test_the_other_computation_agrees_with_the_accountant(releases, delta):
    """It shares no code with it, so a fault of either would show."""
    exposure = {NoisySum(probability, noise): count for probability, noise, count in releases}
    assert recomputed_epsilon(releases, delta) == pytest.approx(composition.epsilon(exposure, delta), rel=2e-3)


def test_nothing_that_trains_is_needed(original):
    program = (
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch' or name.startswith(('zetadp.training', 'zetadp.nn')):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "from pathlib import Path\n"
        "from zetadp.account.verification import verify_run\n"
        "sys.exit(any(check.fault for check in verify_run(Path(sys.argv[1]), Path(sys.argv[2]))))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(original), str(original.parent / "ledgers")], check=True)


def test_an_epsilon_of_masked_sums_names_its_condition_wherever_it_is_printed(tmp_path, capsys):
    plan = sums_plan(noise="os")
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.start(plan.declaration())
        ledger.record([plan.event(node.name, 0) for node in plan.nodes])
    identity = verify_run(tmp_path)[0].what
    assert re.search(rf"epsilon [\d.]+ at delta .*, {IF_HIDDEN}, guarantee: holds", identity)
    assert main(["budget", str(tmp_path)]) == 0
    assert f"declared end, {IF_HIDDEN}\n" in capsys.readouterr().out


@pytest.mark.parametrize("claim", ["sums", "messages", "attempts"])
def test_the_other_computation_finds_a_smaller_epsilon_of_sums_or_of_all_attempts(claim, tmp_path):
    plan = sums_plan(noise="os")
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for _ in range(2 if claim == "attempts" else 1):
            ledger.start(plan.declaration())
            ledger.record([plan.event(node.name, 0) for node in plan.nodes])
    stated = dict(last_statement(read_ledger(tmp_path / "ledger.jsonl"), "sums"))
    write_json(tmp_path / "privacy.json", stated)
    assert COMPUTED not in faults(tmp_path)
    part, key = {
        "sums": (stated, "epsilon"),
        "messages": (stated["threat"], "epsilon_single_messages"),
        "attempts": (stated["earlier_attempts"], "epsilon_together"),
    }[claim]
    part[key] = part[key] / (2 if claim == "attempts" else 1.1)  # an odometer is above what attempts cost
    write_json(tmp_path / "privacy.json", stated)
    assert COMPUTED in faults(tmp_path)


def test_what_a_federation_leaves_is_checked_by_another_option(tmp_path, capsys):
    record(tmp_path / "ledger.jsonl")
    assert "with --key" in ended(capsys, "verify", tmp_path)[2]
    assert "with --key" in mistake(capsys, "verify", tmp_path / "ledger.jsonl")
