"""The recipe of the coordinator's, the hospital's and the operator's page: its files and its commands."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import yaml
from commanded import said
from ledger_builder import record

from zetadp.cli.commands import command_line
from zetadp.hospitals.participant import Participant
from zetadp.hospitals.roster import Roster
from zetadp.hospitals.settings import HospitalSettings, ServerSettings

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "\n".join((DOCS / page).read_text() for page in ("federation.md", "hospital.md", "operations.md"))
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
CONFIGURATION, SERVER, TOGETHER, NODE = [text for kind, text in BLOCKS if kind == "yaml"]
OUTPUTS = [text for kind, text in BLOCKS if kind == "text"]


def shown_commands() -> list[list[str]]:
    """Return the words of every command of the page: in blocks and in sentences."""
    shown = [line for kind, text in BLOCKS for line in text.splitlines() if kind == "" and line.startswith("zetadp")]
    shown += re.findall(r"`(zetadp \w[^`]*)`", TEXT)
    return [shlex.split(command.replace("\n", " ")) for command in shown]


def test_every_command_is_understood():
    named = {words[2] for words in shown_commands() if words[1] == "federation"}
    assert named == {"demo", "certificates", "plan", "kit", "roster", "serve", "key", "member", "approve", "node"}
    for words in shown_commands():
        command_line().parse_args(words[1:])


def test_plan_kit_and_approval_print_what_the_page_shows(tmp_path, monkeypatch, capsys):
    """The hash is that of the page's own configuration, and settings are those of the kit."""
    monkeypatch.chdir(tmp_path)
    Path("federation.yaml").write_text(CONFIGURATION)
    steps = {words[2]: words[1:] for words in reversed(shown_commands()) if words[1] == "federation"}
    said(capsys, *steps["certificates"])
    for step in ("plan", "kit"):
        assert said(capsys, *steps[step]) in OUTPUTS
    monkeypatch.chdir(tmp_path / "kits/node-02")
    own, shown = (yaml.safe_load(text) for text in (Path("node.yaml").read_text(), NODE))
    assert own | {"images": shown["images"]} == shown
    Path("node.yaml").write_text(yaml.safe_dump(own | {"state": "state"}))
    said(capsys, *steps["key"])
    asked, approve = (words[1:] for words in shown_commands() if words[2] == "approve")
    assert said(capsys, *asked) in OUTPUTS
    said(capsys, *approve)
    Participant.read(HospitalSettings.read(Path("node.yaml")), Path("node-02.key")).check_approved()


def test_the_recipe_of_masked_sums_works_as_printed(tmp_path, monkeypatch, capsys):
    """From its configuration to the price of its roster, all sites in one folder."""
    monkeypatch.chdir(tmp_path)
    Path("federation.yaml").write_text(CONFIGURATION)
    Path("together.yaml").write_text(TOGETHER)
    shown = [words[1:] for words in shown_commands()]
    (planned,) = (words for words in shown if words[:2] == ["federation", "plan"] and "together.yaml" in words)
    assert "epsilon 8 for each patient, at delta 0.001; as long as masks hide single messages" in said(capsys, *planned)
    (member,) = (words for words in shown if words[:2] == ["federation", "member"])
    (roster,) = (words for words in shown if words[:2] == ["federation", "roster"])
    shutil.copy("together.json", "plan.json")  # as in a hospital's kit
    for name in ("node-01", "node-02", "node-03"):
        said(capsys, "federation", "key", f"{name}.pub.pem", f"{name}.key")
        said(capsys, *(word.replace("node-02", name) for word in member))
    assert "node-01, node-02, node-03" in said(capsys, *roster)
    assert "node-01, node-02, node-03" in said(capsys, *roster)  # the same again
    node = yaml.safe_load(NODE) | {"plan": "roster.json", "state": "state"}
    Path("node.yaml").write_text(yaml.safe_dump(node))
    asking = ["federation", "approve", "node.yaml", "--key", "node-02.key"]
    asked = said(capsys, *asking)
    digest = Roster.read(Path("roster.json")).digest
    assert f"roster:   {digest}" in asked
    approve = next(words for words in shown if words[:2] == ["federation", "approve"] and "--hash" in words)
    said(capsys, *approve[:-1], digest[:12])
    server = {key: value for key, value in yaml.safe_load(SERVER).items() if key != "keys"} | {"plan": "roster.json"}
    Path("server.yaml").write_text(yaml.safe_dump(server))
    assert ServerSettings.read(Path("server.yaml")).agreed[2].digest == digest
    record(Path("state/ledgers/first.jsonl"))
    assert "with the plan pretrained-together-eps-8-seed-0: epsilon " in said(
        capsys, "budget", "state/ledgers", "--plan", "roster.json", "--node", "node-02"
    )
    Path("node.yaml").write_text(yaml.safe_dump(node | {"cap": 100}))
    assert "Runs recorded in " not in asked
    asked = said(capsys, *asking)
    together, least = re.search(r"and ([\d.]+) with all attempts.* must be at least ([\d.]+)\.\n", asked).groups()
    assert together == least


def test_the_settings_of_the_page_are_read(tmp_path):
    (tmp_path / "node.yaml").write_text(NODE)
    (tmp_path / "server.yaml").write_text(SERVER)
    assert HospitalSettings.read(tmp_path / "node.yaml").answer_seconds == HospitalSettings.answer_seconds
    assert set(ServerSettings.read(tmp_path / "server.yaml").keys) == {"node-01", "node-02", "node-03"}
