"""What a service manager, a log collector and Prometheus get of a server and its nodes."""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from commanded import ended
from cryptography import x509
from hospitals.sites import DirectLine, coordinator, hospitals, make_plan, sums_plan

from zetadp.base.logs import JsonLines
from zetadp.base.validation import NEEDS_A_PERSON, UserError
from zetadp.hospitals import node
from zetadp.hospitals.certificates import make_credentials, make_node_key, read_node_key
from zetadp.hospitals.health import Health
from zetadp.hospitals.kit import SERVER_UNIT, TEMPLATES, write_kits
from zetadp.hospitals.launcher import free_port
from zetadp.hospitals.node import Uplink


def read_counters(address: str, path: str = "/metrics") -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}{path}") as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}


def test_counters_follow_a_training_and_are_read_by_http(tmp_path):
    plan = sums_plan(rounds=3)
    health, address = Health(3), f"127.0.0.1:{free_port()}"
    health.serve(address)
    assert read_counters(address)["zetadp_round"] == 0
    line = DirectLine(hospitals(plan, tmp_path))
    coordinator(plan, line, tmp_path, health=health).run()
    counters = read_counters(address, "/health")
    assert (counters["zetadp_round"], counters["zetadp_rounds"], counters["zetadp_tries_total"]) == (3, 3, 3)
    assert counters["zetadp_members_away"] == 0
    assert counters["zetadp_round_seconds"] > 0
    with pytest.raises(UserError, match="--health: Cannot listen"):
        health.serve(address)


def test_a_node_shows_no_seconds():
    names = {sample.name for family in Health(3, node=True).registry.collect() for sample in family.samples}
    assert names >= {"zetadp_round", "zetadp_members_away"}
    assert "zetadp_round_seconds" not in names


def test_a_member_that_left_is_counted_and_named_at_once(tmp_path, caplog):
    plan = make_plan(rounds=2)
    line = DirectLine(hospitals(plan, tmp_path))
    server = coordinator(plan, line, tmp_path)
    server._log_connections(0, {})
    line.away.add("node-02")
    server._log_connections(0, {})
    assert "node-02 is not connected any more" in caplog.messages
    assert server.health.registry.get_sample_value("zetadp_members_away") == 1
    line.away.clear()
    line.hospitals["node-02"] = hospitals(plan, tmp_path / "again")[1]
    server._log_connections(0, {})
    assert "node-02 was away and has connected again; its request is sent again" in caplog.messages


def test_a_line_of_the_log_is_one_json_object():
    record = logging.makeLogRecord({"msg": "round %d\n\x1b[2J", "args": (3,), "levelname": "INFO"})
    line = JsonLines("node-01").format(record)
    assert line.isprintable()
    content = json.loads(line)
    assert (content["level"], content["site"], content["message"]) == ("INFO", "node-01", "round 3\n\x1b[2J")
    assert datetime.now(UTC) - datetime.fromisoformat(content["time"]) < timedelta(minutes=10)


def test_what_only_a_person_can_mend_has_an_exit_code_at_which_systemd_stops(tmp_path, capsys):
    plan = make_plan(noise="os")
    plan.write(tmp_path / "plan.json")
    keys = make_credentials(tmp_path / "keys")
    make_node_key(tmp_path / "node-01.pub.pem", tmp_path / "node-01.key")
    kits = write_kits(tmp_path / "plan.json", tmp_path / "kits", server="s.example:9443", authority=keys.authority)
    words = ["node", kits[0] / "node.yaml", "--server", "s.example:9443", "--authority", keys.authority]
    code, _, err = ended(capsys, "federation", *words, "--key", tmp_path / "node-01.key")
    assert "Nobody has approved" in err
    _, _, line = ended(capsys, "federation", *words, "--key", tmp_path / "node-01.key", "--log-json")
    assert "Nobody has approved" in json.loads(line)["message"]
    server, unit = (file.read_text() for file in (kits[0].parent / "zetadp-server.service", *kits[0].glob("*.service")))
    for text in (server, unit):
        assert f"RestartPreventExitStatus={code}" in text
        assert "Restart=on-failure" in text
        assert "ProtectSystem=strict" in text
    assert code == 78
    (tmp_path / "server.yaml").write_text("model: x\n")
    code, _, _ = ended(capsys, "federation", "serve", tmp_path / "server.yaml", "--credentials", tmp_path / "keys")
    assert code == 78


@pytest.mark.parametrize(
    ("reason", "code"), [("certificate is not yet valid", 1), ("certificate has expired", NEEDS_A_PERSON)]
)
def test_a_certificate_that_is_not_in_force_means_compare_the_clocks(reason, code, tmp_path, monkeypatch):
    keys = make_credentials(tmp_path / "keys", ["a"])
    uplink = Uplink("127.0.0.1:1", keys.authority, read_node_key(keys.node("a")[1]))

    def fail(_):
        raise httpx.ConnectError(f"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {reason} (_ssl.c:1)")

    monkeypatch.setattr(uplink._client, "ActivateNode", fail)
    with pytest.raises(UserError, match=r"by the clock of this machine, which says 20.*Compare the clocks") as refused:
        uplink.sign_on()
    assert reason in str(refused.value)
    assert "not the server" not in str(refused.value)
    assert refused.value.exit_code == code, "a clock may be set right after a start"
    assert node.RETRY_SECONDS > 0


def test_a_certificate_is_in_force_a_day_before_it_was_made(tmp_path):
    made = x509.load_pem_x509_certificate(make_credentials(tmp_path / "keys").authority.read_bytes())
    early = datetime.now(UTC) - made.not_valid_before_utc
    assert timedelta(hours=23) < early < timedelta(hours=25)


def test_pages_and_unit_name_one_folder_of_the_coordinator():
    docs = Path(__file__).parents[2] / "docs"
    page = "".join((docs / name).read_text() for name in ("federation.md", "hospital.md", "operations.md"))
    unit = (TEMPLATES / SERVER_UNIT).read_text()
    (folder,) = set(re.findall(r"^(?:WorkingDirectory|ReadWritePaths)=(.*)$", unit, flags=re.MULTILINE))
    assert set(re.findall(r"/srv/zetadp/\w+", page + unit)) == {folder, "/srv/zetadp/state"}  # that of a hospital


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_units_are_understood_by_systemd(tmp_path):
    """Except that the program is not installed here."""
    make_plan(noise="os").write(tmp_path / "plan.json")
    authority = make_credentials(tmp_path / "keys").authority
    write_kits(tmp_path / "plan.json", tmp_path / "kits", server="s.example:9443", authority=authority)
    units = [tmp_path / "kits/zetadp-server.service", *(tmp_path / "kits/node-01").glob("*.service")]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    faults = [line for line in done.stderr.splitlines() if re.search(r"zetadp[\w-]*\.service", line)]
    assert [line for line in faults if "is not executable" not in line] == []
