"""A hospital approves one plan and no other, and what it is sent to read before."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from federation.sites import make_plan, sums_plan

from zetadp.base.validation import UserError
from zetadp.cli import main
from zetadp.cli.commands import command_line
from zetadp.core.plan import Plan, RunName
from zetadp.federation.certificates import make_credentials, make_node_key, read_node_key
from zetadp.federation.kit import invitation
from zetadp.federation.masks import Roster
from zetadp.federation.participant import Participant, agreement_file, make_member
from zetadp.federation.settings import HospitalSettings, ServerSettings
from zetadp.privacy import accounting

PLAN = make_plan(noise="os")


def guessed(text: str) -> float:
    return float(re.findall(r"names the right one at most ([\d.]+) %", text)[0])


def test_the_chance_of_a_right_guess_is_the_trade_off_curves_and_grows_with_attempts_to_learn():
    plan = make_plan(delta=1e-3)
    (misses,) = accounting.trade_off(plan.mechanisms("node-01"), [0.1])
    share = guessed(invitation(plan, "node-01"))
    assert share == pytest.approx(100 * (1 - misses), abs=0.1)
    assert share >= 100 * (1 - misses)
    longer = replace(plan, training=replace(plan.training, rounds=40))
    assert guessed(invitation(longer, "node-01")) > share


def test_seeded_noise_and_no_noise_are_named():
    assert "protects nobody" in invitation(make_plan(), "node-01")
    bare = make_plan(sigma=0.0, run=RunName("complex", "federated", "inf", 0))
    text = invitation(bare, "node-01")
    assert "no guarantee" in text
    assert "names the right one" not in text


@pytest.fixture
def hospital(tmp_path):
    """Settings and key of a hospital that has not approved its plan."""
    PLAN.write(tmp_path / "plan.json")
    (tmp_path / "node.yaml").write_text("name: node-02\nplan: plan.json\nimages: images\nstate: state\nattempts: 2\n")
    make_node_key(tmp_path / "node.pub.pem", tmp_path / "node.key")
    return HospitalSettings.read(tmp_path / "node.yaml")


def test_a_plan_is_approved_by_its_hash_at_the_command_line(hospital, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["federation", "approve", "node.yaml", "--key", "node.key"]
    with pytest.raises(UserError, match="Nobody has approved the plan"):
        Participant.read(hospital, tmp_path / "node.key").approved()
    assert main(command) == 0
    said = capsys.readouterr().out
    assert PLAN.digest in said
    assert "Nothing is approved yet" in said
    assert not hospital.state.exists()
    digits = re.findall("--hash ([0-9a-f]+)", said)[0]
    for wrong in (make_plan(noise="os", rounds=5).digest, digits[:11]):
        assert main([*command, "--who", "A. Physician", "--hash", wrong]) == 1
    for half in (["--who", "A. Physician"], ["--hash", digits]):
        assert main([*command, *half]) == 1
        assert "Expected --who and --hash together" in capsys.readouterr().err
    assert not hospital.state.exists()
    assert main([*command, "--who", "A. Physician", "--hash", digits]) == 0
    assert Participant.read(hospital, tmp_path / "node.key").approved().startswith("approved by A. Physician on 20")


def test_what_costs_more_than_was_approved_is_refused(hospital, tmp_path):
    participant = Participant.read(hospital, tmp_path / "node.key")
    participant.approve("a test")
    replace(participant, settings=replace(hospital, attempts=1)).approved()
    with pytest.raises(UserError, match=r"permits 2 attempt\(s\), and the settings now say 3"):
        replace(participant, settings=replace(hospital, attempts=3)).approved()
    nodes = tuple(replace(node, noise_multiplier=1.0) for node in PLAN.nodes)
    with pytest.raises(UserError, match="Nobody has approved"):
        replace(participant, plan=replace(PLAN, nodes=nodes)).approved()


@pytest.mark.parametrize("change", [{"attempts": 9}, {"plan": "0" * 64}, {"node": "node-01"}, {"who": "Somebody"}])
def test_an_approval_that_was_altered_is_refused(change, hospital, tmp_path):
    participant = Participant.read(hospital, tmp_path / "node.key")
    path = participant.approve("a test")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match="was altered"):
        participant.approved()


def test_an_approval_for_another_plan_or_by_another_key_is_refused(hospital, tmp_path):
    participant = Participant.read(hospital, tmp_path / "node.key")
    path = participant.approve("a test")
    other = replace(participant, plan=make_plan(noise="os", rounds=5))
    shutil.copy(path, other.approval)
    for wrong in (other, replace(participant, settings=replace(hospital, name="node-01"))):
        with pytest.raises(UserError, match="for another plan or another node"):
            wrong.approved()
    make_node_key(tmp_path / "other.pub.pem", tmp_path / "other.key")
    with pytest.raises(UserError, match="signed with another key"):
        Participant.read(hospital, tmp_path / "other.key").approved()


SUMS = sums_plan(noise="os")


@pytest.fixture
def members(tmp_path, monkeypatch, capsys):
    """Three hospitals that have made their keys for a plan with masked sums, and the coordinator's roster."""
    monkeypatch.chdir(tmp_path)
    SUMS.write(tmp_path / "plan.json")
    names = [node.name for node in SUMS.nodes]
    for name in names:
        make_node_key(tmp_path / f"{name}.pub.pem", tmp_path / f"{name}.key")
        assert main(["federation", "member", "plan.json", name, "--key", f"{name}.key"]) == 0
        private = agreement_file(tmp_path / f"{name}.key", SUMS)
        assert private.stat().st_mode & 0o777 == 0o600
        assert str(private.name) in capsys.readouterr().out
    assert main(["federation", "roster", "plan.json", *(f"{name}.member.json" for name in names)]) == 0
    digest = Roster.read(tmp_path / "roster.json", SUMS).digest
    assert digest in capsys.readouterr().out
    (tmp_path / "node.yaml").write_text(
        "name: node-02\nplan: plan.json\nroster: roster.json\nimages: images\nstate: state\n"
    )
    return names


def test_a_roster_is_approved_by_its_own_hash_beside_the_plans(members, tmp_path, capsys):
    digest = Roster.read(tmp_path / "roster.json", SUMS).digest
    command = ["federation", "approve", "node.yaml", "--key", "node-02.key"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert digest in said
    assert SUMS.digest in said
    assert re.findall("--hash ([0-9a-f]+) --roster-hash ([0-9a-f]+)", said) == [(SUMS.digest[:12], digest[:12])]
    sign = [*command, "--who", "A. Physician", "--hash", SUMS.digest[:12]]
    for wrong in ([], ["--roster-hash", digest[:11]], ["--roster-hash", SUMS.digest]):
        assert main([*sign, *wrong]) == 1
        assert "roster.json" in capsys.readouterr().err
    assert main([*sign, "--roster-hash", digest[:12]]) == 0
    Participant.read(HospitalSettings.read(tmp_path / "node.yaml"), tmp_path / "node-02.key").approved()


def test_a_roster_that_was_changed_after_the_approval_is_refused(members, tmp_path):
    """A server cannot put itself between two hospitals, or invent one: the approved roster says who they are."""
    settings, key = HospitalSettings.read(tmp_path / "node.yaml"), tmp_path / "node-02.key"
    Participant.read(settings, key).approve("a test")
    make_node_key(tmp_path / "invented.pub.pem", tmp_path / "invented.key")
    invented = make_member(SUMS, "node-03", tmp_path / "invented.key", tmp_path / "other")
    Roster.made(SUMS, [tmp_path / "node-01.member.json", tmp_path / "node-02.member.json", invented]).write(
        tmp_path / "roster.json"
    )
    with pytest.raises(UserError, match="for another roster"):
        Participant.read(settings, key).approved()


def test_a_roster_with_other_keys_of_the_hospital_is_not_approved(members, tmp_path):
    settings, key = HospitalSettings.read(tmp_path / "node.yaml"), tmp_path / "node-02.key"
    make_node_key(tmp_path / "invented.pub.pem", tmp_path / "invented.key")
    invented = make_member(SUMS, "node-02", tmp_path / "invented.key", tmp_path / "other")
    Roster.made(SUMS, [tmp_path / f"{name}.member.json" for name in ("node-01", "node-03")] + [invented]).write(
        tmp_path / "roster.json"
    )
    with pytest.raises(UserError, match="agreement key of node-02 in the roster to be its own"):
        Participant.read(settings, key)


def test_a_roster_is_needed_with_masked_sums_and_refused_without(members, hospital, tmp_path):
    SUMS.write(tmp_path / "plan.json")
    with pytest.raises(UserError, match="Expected the file of the roster"):
        Participant.read(hospital, tmp_path / "node.key")
    PLAN.write(tmp_path / "plan.json")
    with pytest.raises(UserError, match="Expected no roster"):
        Participant.read(replace(hospital, roster=tmp_path / "roster.json"), tmp_path / "node.key")


def test_agreement_keys_are_made_for_one_plan_and_once(members, tmp_path, capsys):
    """One that is stolen later opens the messages of no other training, and so does a stolen signing key."""
    key = tmp_path / "node-01.key"
    other = replace(SUMS, cohort="another")
    make_member(other, "node-01", key, tmp_path / "other")
    ours, theirs = (agreement_file(key, plan).read_text() for plan in (SUMS, other))
    assert ours != theirs
    assert main(["federation", "member", "plan.json", "node-01", "--key", str(key)]) == 1
    assert "must not be lost" in capsys.readouterr().err
    assert agreement_file(key, SUMS).read_text() == ours


def test_a_missing_agreement_key_names_the_command_that_makes_one(members, tmp_path):
    agreement_file(tmp_path / "node-02.key", SUMS).unlink()
    with pytest.raises(UserError, match="`zetadp federation member`"):
        Participant.read(HospitalSettings.read(tmp_path / "node.yaml"), tmp_path / "node-02.key")


def test_the_servers_keys_and_roster_name_the_same_hospitals(members, tmp_path):
    (tmp_path / "server.yaml").write_text(
        "plan: plan.json\nroster: roster.json\nmodel: m\nhistory: h\nledger: l\nledger_file: f\ncheckpoint: c\nkeys:\n"
        + "".join(f"  {name}: {name}.pub.pem\n" for name in members)
    )
    settings = ServerSettings.read(tmp_path / "server.yaml")
    assert settings.agreed[2] is not None
    make_node_key(tmp_path / "new.pub.pem", tmp_path / "new.key")
    with pytest.raises(UserError, match="signing key of node-01"):
        assert replace(settings, keys=settings.keys | {"node-01": tmp_path / "new.pub.pem"}).agreed


@pytest.fixture
def kits(tmp_path):
    PLAN.write(tmp_path / "plan.json")
    made = make_credentials(tmp_path / "keys", [])
    command = ["federation", "kit", str(tmp_path / "plan.json"), "--server", "server.example:9443"]
    command += ["--authority", str(made.authority), "--output", str(tmp_path / "kits")]
    assert main(command) == 0
    assert main(command) == 1  # never over a folder that is there
    return tmp_path / "kits"


def test_a_kit_holds_the_plan_a_page_and_no_private_key(kits):
    assert sorted(path.name for path in kits.iterdir()) == [*(node.name for node in PLAN.nodes), "server"]
    for node in PLAN.nodes:
        kit = kits / node.name
        assert Plan.read(kit / "plan.json").digest == PLAN.digest
        page = (kit / "READ_ME_FIRST.md").read_text()
        assert page.count(PLAN.digest) == 2
        assert f"takes part with {node.population} patients" in page
        settings = HospitalSettings.read(kit / "node.yaml")
        assert (settings.name, settings.simulation, settings.attempts) == (node.name, False, 1)
        for path in kit.iterdir():
            assert "PRIVATE" not in path.read_text()
            with pytest.raises(UserError):
                read_node_key(path)


def test_the_commands_of_a_kit_are_understood(kits):
    kit = kits / "node-02"
    (service,) = yaml.safe_load((kit / "compose.yaml").read_text())["services"].values()
    unit = (kit / "zetadp-node-02.service").read_text()
    page = re.findall(r"`(zetadp \w+ [^`]*)`", (kit / "READ_ME_FIRST.md").read_text())
    shown = [" ".join(service["entrypoint"] + service["command"]), re.findall(r"/bin/(zetadp .*)", unit)[0], *page]
    named = [command.split()[1:3] for command in shown]
    assert [words[-1] for words in named[:-1]] == ["node", "node", "key", "member", "SCANS", "approve", "node"]
    assert named[-1][0] == "verify"
    for command in shown:
        command_line().parse_args(command.replace("YOUR NAME", "me").split()[1:])
    # In the container nothing but the state can be written, and the folder of images is the one of the settings.
    images, state = (yaml.safe_load((kit / "node.yaml").read_text())[key] for key in ("images", "state"))
    assert service["volumes"] == ["./:/site:ro", f"{state}:{state}", f"{images}:{images}:ro"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]


def test_the_folder_of_the_server_needs_nothing_but_keys(kits):
    """With what the page asks for in its folder, the settings are accepted as they are."""
    own = kits / "server"
    assert not any("PRIVATE" in path.read_text() for path in own.iterdir() if path.is_file())
    assert main(["federation", "certificates", str(own / "keys"), "--hosts", "server.example"]) == 0
    page = (own / "READ_ME_FIRST.md").read_text()
    for node in PLAN.nodes:
        assert f"`{node.name}.pub.pem`" in page
        make_node_key(own / f"keys/{node.name}.pub.pem", own / f"{node.name}.key")
    assert PLAN.digest in page
    plan, keys, _ = ServerSettings.read(own / "server.yaml").agreed
    assert plan.digest == PLAN.digest
    assert list(keys) == [node.name for node in PLAN.nodes]
    (service,) = yaml.safe_load((own / "compose.yaml").read_text())["services"].values()
    unit = (own / "zetadp-server.service").read_text()
    started = [" ".join(service["entrypoint"] + service["command"]), re.findall(r"/bin/(zetadp .*)", unit)[0]]
    shown = [*started, *re.findall(r"`(zetadp federation [^`]*)`", page)]
    assert [command.split()[2] for command in shown] == [*("serve", "serve", "certificates", "roster", "serve")]
    given = [command_line().parse_args(command.split()[1:]) for command in shown]
    assert {(each.port, each.credentials) for each in given if "port" in each} == {(9443, Path("keys"))}
    # In the container it can write what the settings name, and nothing else; the port is the one that nodes call.
    assert service["ports"] == ["9443:9443"]
    assert service["volumes"][:3] == ["./:/site:ro", "./state:/site/state", "./out:/site/out"]
    settings = ServerSettings.read(own / "server.yaml")
    made = (settings.model, settings.history, settings.ledger, settings.ledger_file, settings.checkpoint)
    assert {path.relative_to(own).parts[0] for path in made} == {"state", "out"}
