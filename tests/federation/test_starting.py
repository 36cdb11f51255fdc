"""What is refused before anything starts: a port or folder in use, and files that cannot be what they should be."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from federation.sites import make_plan, write_hospital_folder

from zetadp.cli import main
from zetadp.federation.flower.certificates import Credentials, make_credentials
from zetadp.federation.flower.control import Control
from zetadp.federation.flower.exclusive import folder_in_use, require_free_port
from zetadp.federation.flower.launcher import Federation
from zetadp.federation.flower.processes import free_port
from zetadp.validation import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ["node-01", "node-02"]


def put_settings(folder: Path, **changes: object) -> None:
    """Write the settings of a server whose plan and keys are in the same folder."""
    content = {
        "plan": "plan.json",
        "keys": {name: f"keys/{name}.pub.pem" for name in NAMES},
        **{name: f"out/{name}" for name in ("model", "history", "ledger", "ledger_file", "checkpoint")},
    }
    (folder / "server.yaml").write_text(yaml.safe_dump(content | changes))


def put_node(folder: Path, file: str = "node.yaml", **changes: object) -> None:
    """Write the settings of a node whose plan, patients and state are in the same folder."""
    content = {"name": "node-01", "plan": "plan.json", "images": "images", "state": "state"}
    (folder / file).write_text(yaml.safe_dump(content | changes))


@pytest.fixture
def site(tmp_path):
    """A folder with all that a server and a node need, patients aside."""
    make_plan(nodes=2, rounds=2, noise="os").write(tmp_path / "plan.json")
    make_credentials(tmp_path / "keys", NAMES)
    put_settings(tmp_path)
    put_node(tmp_path)
    return tmp_path


@pytest.fixture
def run():
    """Start commands of a federation, which the end of the test ends."""
    with ExitStack() as stack:

        def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "zetadp.cli", "federation", *arguments]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            process = stack.enter_context(subprocess.Popen(command, cwd=folder, **pipes))
            stack.callback(process.kill)
            return process

        yield start


def assert_refused(process: subprocess.Popen[str], *words: str) -> None:
    """It ends by itself, in one message."""
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert said.startswith("zetadp: ")
    assert said.count("\n") == 1
    for word in words:
        assert word in said


@pytest.fixture
def listener() -> Iterator[int]:
    """A port at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.processes
def test_a_second_server_is_refused_and_the_first_trains_to_its_end(consortium, run, tmp_path):
    federation = consortium.federation
    settings = consortium.server(give_up_seconds=200.0)
    settings.write(tmp_path / "server.json")
    federation.processes.send("node-03", signal.SIGSTOP)  # no round is done before the second server was there
    training = federation.begin(settings)
    serve = ["serve", "server.json", "--credentials", str(consortium.credentials.folder), "--folder"]
    port = run(tmp_path, *serve, str(tmp_path / "other"), "--port", str(federation.port))
    folder = run(tmp_path, *serve, str(federation.folder), "--port", str(free_port()))
    assert_refused(port, f"Port {federation.port} of 0.0.0.0 is taken")
    assert_refused(folder, f"The folder {federation.folder} is in use")
    assert not (tmp_path / "other").exists()
    assert not settings.model.exists()
    federation.processes.send("node-03", signal.SIGCONT)
    federation.wait(training)
    assert settings.model.exists()


@pytest.mark.processes
def test_an_operator_of_another_federation_can_do_nothing_with_a_server(consortium, tmp_path):
    """Were a second server not refused at its start, the first would refuse it, and every other of its requests."""
    log = consortium.federation.folder / "logs/superlink.log"
    known = log.stat().st_size
    with Control(consortium.federation.address, consortium.credentials.authority, b"another secret") as foreign:
        start = partial(foreign.start, tmp_path / "server.json")
        for action in (foreign.ready, foreign.stop_all, foreign.online, start, partial(foreign.admit, "a", b"key")):
            with pytest.raises(UserError, match="Another server than that of this federation answers"):
                action()
    assert set(re.findall(r"/v1/control/\S+ HTTP/1.1\" (\d+)", log.read_text()[known:])) == {"403"}


@pytest.mark.processes
def test_a_second_node_of_the_same_state_or_folder_is_refused_and_the_first_goes_on(site, run, capsys, monkeypatch):
    monkeypatch.chdir(site)
    write_hospital_folder(site / "images", 3)
    put_node(site, "elsewhere.yaml", state="elsewhere")
    rest = ["--server", f"127.0.0.1:{free_port()}", "--authority", "keys/authority.pem", "--key", "keys/node-01.key"]
    first = run(site, "node", "node.yaml", "--folder", "run", *rest)
    assert first.stdout.readline().startswith("node-01 is starting")
    same_state = mistake(capsys, "node", "node.yaml", "--folder", "run-2", *rest)
    assert f"The folder {site / 'state'} is in use" in same_state
    assert "state in node.yaml" in same_state
    same_folder = mistake(capsys, "node", "elsewhere.yaml", "--folder", "run", *rest)
    assert f"The folder {site / 'run'} is in use" in same_folder
    assert "--folder" in same_folder
    assert not (site / "run-2").exists()
    assert first.poll() is None
    first.kill()
    first.wait()
    with folder_in_use(site / "run", ""), folder_in_use(site / "state", ""):
        pass


def test_a_server_at_a_taken_port_starts_no_process_and_makes_no_folder(site, listener):
    with (
        pytest.raises(UserError, match=f"Port {listener} of 127.0.0.1 is taken"),
        Federation(site / "run", Credentials(site / "keys"), port=listener) as federation,
    ):
        pytest.fail(f"{federation} started")
    assert not (site / "run").exists()


def test_a_port_is_free_again_when_its_server_ends_though_connections_linger(listener):
    """A connection that the server closed first stays for a minute, in which the next server must be able to start."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        server.accept()[0].close()
        client.recv(1)
        client.close()
        with pytest.raises(UserError, match=f"Port {port}"):
            require_free_port("0.0.0.0", port)
    require_free_port("0.0.0.0", port)


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [("192.0.2.7", 9443, "found 192.0.2.7"), ("::", 9443, "found ::"), ("127.0.0.1", 0, "found 0"), ("", 1, "found ")],
)
def test_hosts_and_ports_that_cannot_serve_are_named(host, port, words):
    with pytest.raises(UserError, match=words):
        require_free_port(host, port)


def test_a_port_that_is_not_permitted_is_named(monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse, raising=False)
    with pytest.raises(UserError, match=r"port 443 of 0\.0\.0\.0: Permission denied"):
        require_free_port("0.0.0.0", 443)


def test_a_folder_in_use_is_free_when_its_process_ends_however_that_happens(tmp_path):
    hold = (
        "import sys, time; from pathlib import Path; from zetadp.federation.flower.exclusive import folder_in_use\n"
        "with folder_in_use(Path(sys.argv[1]), '--folder'): print('held', flush=True); time.sleep(1000)"
    )
    folder = tmp_path / "new" / "folder"
    with subprocess.Popen([sys.executable, "-c", hold, folder], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"The folder {folder} is in use"), folder_in_use(folder, "--folder"):
            pass
        other.kill()
    with folder_in_use(folder, "--folder"):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Cannot write the folder"), folder_in_use(tmp_path / "file/folder", "--folder"):
        pass


def mistake(capsys, *arguments: object) -> str:
    assert main(["federation", *map(str, arguments)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("zetadp: ")
    return err
