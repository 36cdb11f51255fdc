"""The recipe of docs/federation.md for several machines, on one: its files and its commands."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import yaml
from federation.sites import make_plan, write_hospital_folder

from zetadp.base.tensors import load_tensors
from zetadp.cli import main
from zetadp.federation.certificates import make_credentials
from zetadp.federation.launcher import free_port
from zetadp.federation.participant import Participant
from zetadp.federation.settings import HospitalSettings
from zetadp.privacy.ledger import read_ledger

TEXT = (Path(__file__).parents[2] / "docs/federation.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
CONFIGURATION, NODE, SERVER = [text for kind, text in BLOCKS if kind == "yaml"]
OUTPUTS = [text for kind, text in BLOCKS if kind == "text"]


def shown_commands() -> list[list[str]]:
    """Return the words of every command of the page: in blocks and in sentences."""
    shown = [line for kind, text in BLOCKS for line in text.splitlines() if kind == "" and line.startswith("zetadp")]
    shown += re.findall(r"`(zetadp \w[^`]*)`", TEXT)
    return [shlex.split(command.replace("\n", " ")) for command in shown]


def test_plan_kit_and_approval_print_what_the_page_shows(tmp_path, monkeypatch, capsys):
    """The hash is that of the page's own configuration, and settings are those of the kit."""
    monkeypatch.chdir(tmp_path)
    Path("federation.yaml").write_text(CONFIGURATION)
    main(["federation", "certificates", "keys", "--hosts", "server.example"])
    steps = {words[2]: words[1:] for words in shown_commands() if words[1] == "federation" and words[2] != "approve"}
    for step in ("plan", "kit"):
        capsys.readouterr()
        assert main(steps[step]) == 0
        assert capsys.readouterr().out in OUTPUTS
    kit = tmp_path / "kits/node-02"
    own, shown = (yaml.safe_load(text) for text in ((kit / "node.yaml").read_text(), NODE))
    assert own | {"images": shown["images"]} == shown
    (kit / "node.yaml").write_text(yaml.safe_dump(own | {"state": str(tmp_path / "state")}))
    monkeypatch.chdir(kit)
    assert main(["federation", "key", "node-02.pub.pem", "node-02.key"]) == 0
    capsys.readouterr()
    for command in [words[1:] for words in shown_commands() if words[2] == "approve"]:
        assert main(command) == 0
        assert capsys.readouterr().out.replace(str(tmp_path), "/srv/zetadp") in OUTPUTS


def start(stack: ExitStack, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command of the package, which the end of the test ends."""
    with (folder / f"{arguments[0]}-{len(list(folder.glob('*.out')))}.out").open("wb") as output:
        command = [sys.executable, "-m", "zetadp.cli", "federation"]
        process = subprocess.Popen([*command, *arguments], cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def wait_until_it_listens(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until something answers at a port of this machine."""
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)


@pytest.mark.slow
def test_sites_that_follow_the_recipe_train_a_model_and_stop_cleanly(tmp_path):
    """With noise from the operating system, as hospitals have it, and every site in a folder of its own."""
    plan = make_plan(nodes=2, rounds=2, noise="os")
    names = [node.name for node in plan.nodes]
    plan.write(tmp_path / "plan.json")
    make_credentials(tmp_path / "keys", names)
    port = free_port()
    shown = yaml.safe_load(SERVER)
    shown["keys"] = {name: f"keys/{name}.pub.pem" for name in names}
    del shown["watched"], shown["watched_patients"]
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(shown | {"patience": {"give_up_seconds": 900}}))
    with ExitStack() as stack:
        serve = ["server.yaml", "--credentials", "keys", "--host", "127.0.0.1", "--port", str(port)]
        server = start(stack, tmp_path, "serve", *serve)
        wait_until_it_listens(port, server)  # what a service manager's restarts do for a node that is early
        nodes = []
        for place, name in enumerate(names):
            site = tmp_path / name
            write_hospital_folder(site / "images", plan.nodes[place].population, place)
            own = yaml.safe_load(NODE) | {"name": name, "images": "images", "state": "state", "answer_seconds": 0.2}
            own["cap"] = 20
            shutil.copy(tmp_path / "plan.json", site)
            (site / "node.yaml").write_text(yaml.safe_dump(own))
            Participant.read(HospitalSettings.read(site / "node.yaml"), tmp_path / f"keys/{name}.key").approve("a test")
            keys = ["--authority", "../keys/authority.pem", "--key", f"../keys/{name}.key"]
            at = ["node.yaml", "--server", f"127.0.0.1:{port}", "--idle-seconds", "0.2"]
            nodes.append(start(stack, site, "node", *at, *keys))
        while server.poll() is None:
            assert [node.poll() for node in nodes] == [None, None]
            time.sleep(0.1)
        assert server.returncode == 0, (tmp_path / "serve-0.out").read_text()
        said = (tmp_path / "serve-0.out").read_text()
        assert "connected nodes: node-01, node-02; not connected: none" in said
        assert "round 2 of 2 is done; epsilon spent so far " in said
        for name in names:
            (output,) = (tmp_path / name).glob("node-*.out")
            assert f"{name}: connected to the server" in output.read_text()
            assert f"{name}: round 2 of 2 is recorded; epsilon spent so far " in output.read_text()

        tensors, content = load_tensors(tmp_path / "out/model.safetensors")
        assert all(value.isfinite().all() for value in tensors.values())
        (attempt,) = read_ledger(tmp_path / "state/ledger.jsonl")
        assert content["ledger_head"] in attempt.heads
        for name in names:
            (own,) = read_ledger(tmp_path / name / "state/ledgers" / f"{plan.label}.jsonl")
            assert own.releases() == [plan.event(name, number) for number in range(2)]
            assert own.header["noise"] == "os"
            noted = re.findall(f"last line of the ledger of {name}: (.*)", said)
            ledger = f"{tmp_path}/{name}/state/ledgers/{plan.label}.jsonl"
            assert main(["verify", ledger, "--key", f"{tmp_path}/keys/{name}.pub.pem", "--head", *noted]) == 0

        # A service manager stops a node politely; a crash does not. Nothing of either stays.
        for node, how in zip(nodes, (signal.SIGTERM, signal.SIGKILL), strict=True):
            own = psutil.Process(node.pid).children(recursive=True)
            node.send_signal(how)
            assert node.wait(20) == (0 if how == signal.SIGTERM else -signal.SIGKILL)
            assert not psutil.wait_procs(own, timeout=20)[1]
