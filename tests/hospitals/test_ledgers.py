"""The server's copy of a hospital's ledger, and what the node's own key and a noted head say of either."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hospitals.sites import DirectLine, coordinator, make_hospital, make_plan

from zetadp.account import register
from zetadp.account.attempts import read_ledger
from zetadp.account.book import Book
from zetadp.account.ledger import Ledger
from zetadp.account.register import REGISTER, START, Link, follow
from zetadp.cli import main
from zetadp.hospitals.certificates import make_credentials, read_node_key
from zetadp.hospitals.ledgers import Mirror

PLAN = make_plan(rounds=3, noise="os")
NAME = "node-02"


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "own.jsonl"
    with Ledger(path) as ledger:
        for attempt in ("first", "second"):
            ledger.start(replace(PLAN.declaration(), federation=attempt))
            for number in range(3):
                ledger.record([PLAN.event("node-01", number)])
                ledger.note_sent(number, 0, "digest")
    return path.read_text().splitlines()


@pytest.fixture
def mirror(tmp_path):
    return Mirror(tmp_path / "copies/node-01.jsonl")


def test_lines_are_kept_and_their_releases_known_and_counted_once(mirror, lines):
    assert mirror.known == ""
    mirror.extend(lines[:4])
    assert mirror.of_attempt("first") == [PLAN.event("node-01", number) for number in (0, 1)]
    for seen_before in (lines[:10], lines[6:], lines):
        mirror.extend(seen_before)
    assert mirror.path.read_text().splitlines() == lines
    assert mirror.of_attempt("second") == [PLAN.event("node-01", number) for number in range(3)]
    assert mirror.of_attempt("first") == []
    again = Mirror(mirror.path)
    assert (again.head, again.of_attempt("second")) == (mirror.head, mirror.of_attempt("second"))


def test_a_torn_line_of_the_node_counts_as_a_release(mirror, tmp_path):
    path = tmp_path / "torn.jsonl"
    with Ledger(path) as ledger:
        ledger.start(replace(PLAN.declaration(), federation="x"))
        ledger.record([PLAN.event("node-01", 0)])
    with path.open("a") as file:
        file.write('{"chain"')
    Ledger(path).close()
    mirror.extend(path.read_text().splitlines())
    assert mirror.of_attempt("x") == [PLAN.event("node-01", 0)] * 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    keys = make_credentials(folder / "keys", [node.name for node in PLAN.nodes])
    own = [read_node_key(keys.node(node.name)[1]) for node in PLAN.nodes]
    line = DirectLine([make_hospital(PLAN, place, folder, key=key) for place, key in enumerate(own)])
    coordinator(PLAN, line, folder).run()
    return folder


@pytest.fixture
def site(finished, tmp_path):
    """The same in a folder where a test may spoil it."""
    return shutil.copytree(finished, tmp_path / "site")


def verified(site: Path, ledger: Path, key: str = NAME, *more: str) -> bool:
    return main(["verify", str(ledger), "--key", str(site / f"keys/{key}.pub.pem"), *more]) == 0


def live(site: Path) -> Path:
    return site / NAME / f"ledgers/{PLAN.label}.jsonl"


def mirrored(site: Path) -> Path:
    return site / f"server/ledger.nodes/{NAME}.jsonl"


def test_a_node_signs_its_ledger_and_the_servers_copy_carries_the_signature(site):
    for ledger in (live(site), mirrored(site)):
        assert verified(site, ledger)
        assert not verified(site, ledger, "node-01")
    *lines, _ = mirrored(site).read_text().splitlines()
    mirrored(site).write_text("\n".join(lines) + "\n")
    assert not verified(site, mirrored(site))  # lines after the last signature are not signed


def test_an_older_copy_of_the_whole_folder_is_found_by_a_head_that_was_noted(site, capsys):
    noted = Mirror(mirrored(site)).known
    assert verified(site, live(site), NAME, "--head", noted)
    (attempt,) = read_ledger(live(site))
    lines = live(site).read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if '"kind": "signed"' in line]
    live(site).write_text("".join(lines[: ends[-2] + 1]))
    own_register = live(site).parent / REGISTER
    own_register.write_text("".join(own_register.read_text().splitlines(keepends=True)[:1]))
    assert noted == attempt.last
    assert verified(site, live(site))
    assert not verified(site, live(site), NAME, "--head", noted)
    assert "an older copy was put back" in capsys.readouterr().out


@pytest.mark.parametrize("kept", [{"signed"}, set()])
def test_a_chain_and_a_register_made_anew_lack_the_nodes_signature(site, kept):
    """One round of three, told by somebody who can write the folder and read its secret."""
    ledger = live(site)
    entries = [link.entry for link in follow(ledger.read_bytes().splitlines())]
    wanted = [entry for entry in entries if entry["kind"] in {"start", *kept}]
    one = next(entry for entry in entries if entry["kind"] == "round")
    (ledger.parent / REGISTER).unlink()
    register.note(ledger.parent, {"ledger": ledger.name, "head": START})
    wanted[0]["register"] = register.head_beside(ledger)
    head, lines = START, []
    for entry in (wanted[0], one, *wanted[1:]):
        link = Link.after(head, entry)
        head = link.head
        lines.append(f"{link.text}\n")
    ledger.write_text("".join(lines))
    register.note(ledger.parent, {"ledger": ledger.name, "head": head})
    Book.read(ledger.parent)  # the folder agrees with its register
    assert not verified(site, ledger)
