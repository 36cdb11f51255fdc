"""The recipe of docs/federation.md: its files and its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml
from commanded import said

from zetadp.cli.commands import command_line
from zetadp.federation.participant import Participant
from zetadp.federation.settings import HospitalSettings, ServerSettings

TEXT = (Path(__file__).parents[2] / "docs/federation.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
CONFIGURATION, NODE, SERVER = [text for kind, text in BLOCKS if kind == "yaml"]
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
    steps = {words[2]: words[1:] for words in shown_commands() if words[1] == "federation"}
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


def test_the_settings_of_the_page_are_read(tmp_path):
    (tmp_path / "node.yaml").write_text(NODE)
    (tmp_path / "server.yaml").write_text(SERVER)
    assert HospitalSettings.read(tmp_path / "node.yaml").answer_seconds == HospitalSettings.answer_seconds
    assert set(ServerSettings.read(tmp_path / "server.yaml").keys) == {"node-01", "node-02", "node-03"}
