"""The recipe of docs/federation.md for several machines, on one: its files, its commands, its service."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import yaml
from federation.sites import make_plan, write_hospital_folder

from zetadp.cli import main
from zetadp.federation.flower.processes import free_port
from zetadp.federation.flower.settings import HospitalSettings, ServerSettings
from zetadp.privacy.ledger import read_ledger
from zetadp.tensors import load_tensors

if TYPE_CHECKING:
    from collections.abc import Collection

TEXT = (Path(__file__).parents[2] / "docs/federation.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
NODE, SERVER = [text for kind, text in BLOCKS if kind == "yaml"]
SERVICES = [text for kind, text in BLOCKS if kind == "ini"]


def test_the_settings_that_are_shown_are_accepted(tmp_path):
    path = tmp_path / "shown.yaml"
    path.write_text(NODE)
    node = HospitalSettings.read(path)
    assert (node.plan, node.simulation, node.attempts) == (tmp_path / "plan.json", False, 1)
    path.write_text(SERVER)
    server = ServerSettings.read(path)
    assert server.keys["node-02"] == tmp_path / "keys/node-02.pub.pem"
    assert server.patience.missing == "wait"


def test_the_commands_that_are_shown_are_understood(capsys):
    shown = [line for kind, text in BLOCKS for line in text.splitlines() if kind == "" and line.startswith("zetadp")]
    shown += [line.partition("/bin/")[2] for text in SERVICES for line in text.splitlines() if "ExecStart" in line]
    assert {command.split()[2] for command in shown} == {"demo", "plan", "show", "key", "node", "serve"}
    for command in shown:
        name, *arguments = command.split()
        assert name == "zetadp"
        with pytest.raises(SystemExit) as ended:  # help is shown where everything before it was understood
            main([*arguments, "--help"])
        assert ended.value.code == 0
        options = {word for word in arguments if word.startswith("--")}
        assert options <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.parametrize("text", SERVICES)
def test_the_services_that_are_shown_are_valid(text, tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    (tmp_path / "zetadp-test.service").write_text(text.replace("/opt/zetadp/bin/zetadp", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / "zetadp-test.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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


def assert_all_end(processes: Collection[psutil.Process]) -> None:
    assert len(processes) >= 3  # a forge, and what it forked
    _, left = psutil.wait_procs(processes, timeout=20)
    assert not left


@pytest.mark.slow
def test_sites_that_follow_the_recipe_train_a_model_and_stop_cleanly(tmp_path):
    """With noise from the operating system, as hospitals have it, and every site in a folder of its own."""
    plan = make_plan(nodes=2, rounds=2, noise="os")
    names = [node.name for node in plan.nodes]
    plan.write(tmp_path / "plan.json")
    assert main(["federation", "certificates", str(tmp_path / "keys"), "--nodes", *names]) == 0
    port = free_port()
    shown = yaml.safe_load(SERVER)
    shown["keys"] = {name: f"keys/{name}.pub.pem" for name in names}
    del shown["watched"], shown["watched_patients"]
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(shown | {"patience": {"give_up_seconds": 120}}))
    with ExitStack() as stack:
        serve = ["server.yaml", "--credentials", "keys", "--host", "127.0.0.1", "--port", str(port)]
        server = start(stack, tmp_path, "serve", *serve)
        wait_until_it_listens(port, server)  # what a service manager's restarts do for a node that is early
        nodes = []
        for place, name in enumerate(names):
            site = tmp_path / name
            write_hospital_folder(site / "images", plan.nodes[place].population, place)
            own = yaml.safe_load(NODE) | {"name": name, "images": "images", "state": "state", "answer_seconds": 0.2}
            own["most_epsilon"] = 20
            shutil.copy(tmp_path / "plan.json", site)
            (site / "node.yaml").write_text(yaml.safe_dump(own))
            keys = ["--authority", "../keys/authority.pem", "--key", f"../keys/{name}.key"]
            at = ["node.yaml", "--server", f"127.0.0.1:{port}", "--idle-seconds", "0.2"]
            nodes.append(start(stack, site, "node", *at, *keys))
        running: set[psutil.Process] = set()
        while server.poll() is None:
            assert [node.poll() for node in nodes] == [None, None]
            running.update(psutil.Process(server.pid).children(recursive=True))
            time.sleep(0.1)
        assert server.returncode == 0, (tmp_path / "serve-0.out").read_text()
        assert_all_end(running)

        tensors, content = load_tensors(tmp_path / "out/model.safetensors")
        assert all(value.isfinite().all() for value in tensors.values())
        (account,) = read_ledger(tmp_path / "state/ledger.jsonl")
        assert content["ledger_head"] in account.heads
        for name in names:
            (own,) = read_ledger(tmp_path / name / "state/ledgers" / f"{plan.label}.jsonl")
            assert own.releases() == [plan.event(name, number) for number in range(2)]
            assert own.header["noise"] == "os"

        # A service manager stops a node politely; a crash does not. Nothing of either stays.
        for node, how in zip(nodes, (signal.SIGTERM, signal.SIGKILL), strict=True):
            own = psutil.Process(node.pid).children(recursive=True)
            node.send_signal(how)
            assert node.wait(20) == (0 if how == signal.SIGTERM else -signal.SIGKILL)
            assert_all_end(own)
