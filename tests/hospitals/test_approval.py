"""A hospital approves one plan and no other, and what it is sent to read before."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace

import pytest
import torch
import yaml
from commanded import logs_restored, mistake, said
from hospitals.sites import make_plan, roster_of, sums_plan

from zetadp.account.attempts import read_ledger
from zetadp.account.ledger import Ledger
from zetadp.accounting import composition
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.storage import read_json
from zetadp.base.tensors import save_tensors
from zetadp.base.validation import UserError
from zetadp.cli import main
from zetadp.cli.commands import command_line
from zetadp.hospitals import node
from zetadp.hospitals.certificates import make_credentials, make_node_key, read_node_key
from zetadp.hospitals.kit import invitation, write_kits
from zetadp.hospitals.participant import Participant, agreement_file, make_member
from zetadp.hospitals.roster import Member, Roster
from zetadp.hospitals.settings import HospitalSettings, ServerSettings
from zetadp.training.plan import Plan
from zetadp.training.public import Public

PLAN, SUMS = make_plan(noise="os"), sums_plan(noise="os")
NAMES = [node.name for node in SUMS.nodes]


def guessed(text: str) -> float:
    return float(re.findall(r"names the right one at most ([\d.]+) %", text)[0])


def test_the_chance_of_a_right_guess_is_the_trade_off_curves_and_grows_with_attempts_to_learn():
    plan = make_plan(delta=1e-3)
    (misses,) = composition.trade_off(plan.mechanisms("node-01"), [0.1])
    share = guessed(invitation(plan, "node-01"))
    assert share == pytest.approx(100 * (1 - misses), abs=0.1)
    assert share >= 100 * (1 - misses)
    longer = replace(plan, training=replace(plan.training, rounds=40))
    assert guessed(invitation(longer, "node-01")) > share


def test_who_approves_reads_the_constants_that_everybody_declared():
    public = Public.of(PLAN)
    assert f"declared: {public}" in invitation(PLAN, "node-01")
    assert (public.people, public.rounds, public.clip) == (PLAN.people, PLAN.training.rounds, PLAN.training.clip)


def test_seeded_noise_and_no_noise_are_named():
    assert "protects nobody" in invitation(make_plan(), "node-01")
    bare = make_plan(sigma=0.0, run=RunName("complex", "federated", Target(math.inf), 0))
    text = invitation(bare, "node-01")
    assert "no guarantee" in text
    assert "names the right one" not in text


@pytest.fixture
def hospital(tmp_path, monkeypatch):
    """Settings of a hospital that has not agreed to its plan; its files are in the working directory."""
    monkeypatch.chdir(tmp_path)
    PLAN.write(tmp_path / "plan.json")
    for name in NAMES:
        make_node_key(tmp_path / f"{name}.pub.pem", tmp_path / f"{name}.key")
    return HospitalSettings("node-02", *(tmp_path / name for name in ("plan.json", "images", "state")), attempts=2)


@pytest.fixture
def members(hospital, tmp_path, capsys):
    """The same hospital in a plan with masked sums, whose hospitals have made their keys, and its roster."""
    SUMS.write(tmp_path / "plan.json")
    for name in NAMES:
        assert main(["federation", "member", "plan.json", name, "--key", f"{name}.key"]) == 0
        private = agreement_file(tmp_path / f"{name}.key", SUMS)
        assert private.stat().st_mode & 0o777 == 0o600
        assert private.name in capsys.readouterr().out
    assert main(["federation", "roster", "plan.json", *(f"{name}.member.json" for name in NAMES)]) == 0
    assert Roster.read(tmp_path / "roster.json").digest in capsys.readouterr().out
    return replace(hospital, plan=tmp_path / "roster.json")


def participant(settings: HospitalSettings, **changes: object) -> Participant:
    return Participant.read(replace(settings, **changes), settings.plan.with_name(f"{settings.name}.key"))


@pytest.mark.parametrize(("kind", "plan"), [("hospital", PLAN), ("members", SUMS)])
def test_a_plan_or_a_roster_is_approved_by_its_hash_at_the_command_line(kind, plan, request, tmp_path, capsys):
    settings = request.getfixturevalue(kind)
    digest = participant(settings).digest
    assert digest == (plan if plan == PLAN else Roster.read(settings.plan)).digest
    files = {"plan": settings.plan.name, "images": "images", "state": "state"}
    (tmp_path / "node.yaml").write_text(json.dumps({"name": "node-02", "attempts": 2, **files}))
    command = ["federation", "approve", "node.yaml", "--key", "node-02.key"]
    told = said(capsys, *command)
    assert plan.digest in told
    assert digest in told
    assert ("As long as masks hide single messages, someone who has" in told) is plan.masked
    (digits,) = re.findall("--hash ([0-9a-f]+)$", told, flags=re.MULTILINE)
    for wrong in (digits[:11], make_plan(noise="os", rounds=5).digest, SUMS.digest):
        assert digest in mistake(capsys, *command, "--who", "A. Physician", "--hash", wrong)
    for half in (["--who", "A. Physician"], ["--hash", digits]):
        assert "Expected --who and --hash together" in mistake(capsys, *command, *half)
    assert not settings.state.exists()
    with pytest.raises(UserError, match="Nobody has approved"):
        participant(settings).check_approved()
    approved = said(capsys, *command, "--who", "A. Physician", "--hash", digits.upper())
    assert "The node cannot start yet. Expected the folder of this hospital's patients" in approved
    (tmp_path / "images").mkdir()
    (tmp_path / "images/patient_key.tsv").touch()
    assert "The node may start." in said(capsys, *command, "--who", "A. Physician", "--hash", digits)
    assert participant(settings).check_approved().startswith("approved by A. Physician on 20")


@pytest.mark.parametrize("cap", [None, 1e6])
def test_a_plan_that_protects_another_unit_than_earlier_ones_is_refused(cap, hospital):
    of_records = replace(PLAN, cohort_unit="record", run=replace(PLAN.run, seed=7))
    with Ledger(hospital.state / "ledgers" / f"{of_records.label}.jsonl") as ledger:
        ledger.start(of_records.declaration())
        ledger.record([of_records.event("node-02", 0)])
    with pytest.raises(UserError, match=r"protect one unit, found record .* and patient "):
        participant(hospital, cap=cap)


def test_a_plan_or_a_roster_that_is_not_there_is_asked_for_with_the_steps_before(hospital, tmp_path, capsys):
    files = {"plan": "roster.json", "images": "images", "state": "state"}
    (tmp_path / "node.yaml").write_text(json.dumps({"name": "node-02", **files}))
    message = mistake(capsys, "federation", "approve", "node.yaml", "--key", "node-02.key")
    steps = ["roster.json, found no file", "federation member", "federation roster", "Approve after that"]
    assert sorted(steps, key=message.index) == steps
    SUMS.write(tmp_path / "roster.json")  # the plan in the place of its roster
    message = mistake(capsys, "federation", "approve", "node.yaml", "--key", "node-02.key")
    assert sorted(steps[1:], key=message.index) == steps[1:]


@pytest.mark.parametrize("kind", ["hospital", "members"])
def test_a_line_of_a_nodes_log_names_the_node_once(kind, request, tmp_path, capsys, monkeypatch):
    settings = request.getfixturevalue(kind)
    own = participant(settings)
    own.approve("A. Physician", own.digest)
    authority = make_credentials(tmp_path / "keys").authority
    files = {"plan": settings.plan.name, "images": "images", "state": "state"}
    (tmp_path / "node.yaml").write_text(json.dumps({"name": "node-02", "attempts": 2, **files}))
    monkeypatch.setattr(node, "run_node", lambda *_: None)
    with logs_restored():
        words = ["--server", "s.example:9443", "--authority", authority, "--key", "node-02.key"]
        line = said(capsys, "federation", "node", "node.yaml", *words)
    assert re.match(r"\S+ INFO node-02: epsilon [\d.]+ for each patient, at delta ", line)
    assert line.count("node-02") == 1


def test_what_costs_more_than_was_approved_or_was_altered_is_refused(hospital):
    own = participant(hospital)
    path = own.approve("a test", own.digest)
    participant(hospital, attempts=1).check_approved()
    with pytest.raises(UserError, match=r"permits 2 attempts, and the settings now say 3"):
        participant(hospital, attempts=3).check_approved()
    louder = replace(own, plan=replace(PLAN, nodes=tuple(replace(node, noise_multiplier=1.0) for node in PLAN.nodes)))
    with pytest.raises(UserError, match="Nobody has approved"):
        louder.check_approved()
    shutil.copy(path, louder.approval)
    for other in (louder, replace(own, settings=replace(hospital, name="node-01"))):
        with pytest.raises(UserError, match="for another plan, roster or node"):
            other.check_approved()
    with pytest.raises(UserError, match="signed with another key"):
        replace(own, key=read_node_key(hospital.plan.with_name("node-01.key"))).check_approved()
    for change in ({"attempts": 9}, {"digest": "0" * 64}, {"node": "node-01"}, {"who": "Somebody"}, {"signature": 1}):
        path.write_text(json.dumps(read_json(path) | change))
        with pytest.raises(UserError, match="was altered"):
            own.check_approved()


def test_a_roster_that_was_changed_after_the_approval_is_refused(members, tmp_path):
    """A server cannot put itself between two hospitals, or invent one: the approved roster says who they are."""
    own = participant(members)
    own.approve("a test", own.digest)
    make_node_key(tmp_path / "new.pub.pem", tmp_path / "new.key")

    def invent(name: str) -> Participant:
        invented = make_member(SUMS, name, tmp_path / "new.key", tmp_path / name)
        agreement_file(tmp_path / "new.key", SUMS).unlink()
        others = [tmp_path / f"{other}.member.json" for other in NAMES if other != name]
        Roster.from_files(SUMS, [*others, invented]).write(members.plan)
        return participant(members)

    with pytest.raises(UserError, match="Nobody has approved"):
        invent("node-03").check_approved()
    with pytest.raises(UserError, match="agreement key of node-02 in the roster to be its own"):
        invent("node-02")


def test_a_roster_is_needed_with_masked_sums_and_refused_without(members, hospital):
    with pytest.raises(UserError, match=r"Expected .* to be the roster of"):
        participant(hospital)
    bare = replace(SUMS, nodes=tuple(replace(node, noise_multiplier=0.0) for node in SUMS.nodes))
    made = [Member.create(bare, node.name, *keys) for node, keys in zip(bare.nodes, roster_of(SUMS)[1], strict=True)]
    Roster(bare, tuple(made)).write(members.plan)
    with pytest.raises(UserError, match=r"Expected .* to be the plan of"):
        participant(members)


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
    agreement_file(tmp_path / "node-02.key", SUMS).unlink()
    with pytest.raises(UserError, match="`zetadp federation member`"):
        participant(members)


def test_a_server_has_the_keys_of_its_roster_or_of_its_settings(members, hospital, tmp_path):
    files = dict.fromkeys(("model", "history", "ledger", "ledger_file", "checkpoint"), tmp_path / "file")
    keys = {name: tmp_path / f"{name}.pub.pem" for name in NAMES}
    masked = ServerSettings(members.plan, **files)
    assert masked.agreed[2] is not None
    with pytest.raises(UserError, match="no keys with a roster"):
        assert replace(masked, keys=keys).agreed
    found = masked.agreed[1]
    PLAN.write(hospital.plan)
    local = ServerSettings(hospital.plan, **files, keys=keys).agreed[1]
    twice = dict.fromkeys(keys, next(iter(keys.values())))
    with pytest.raises(UserError, match=r"the same one at \['node-01', "):
        assert ServerSettings(hospital.plan, **files, keys=twice).agreed
    assert local == found


def test_a_server_does_not_write_over_the_files_of_another_training(hospital, tmp_path):
    """Its ledger would count both trainings, and the model of the first one would be lost."""
    files = dict.fromkeys(("history", "ledger", "checkpoint"), tmp_path / "file")
    settings = ServerSettings(hospital.plan, model=tmp_path / "model", ledger_file=tmp_path / "live.jsonl", **files)
    settings = replace(settings, keys={name: tmp_path / f"{name}.pub.pem" for name in NAMES})
    settings.check_files()
    with Ledger(settings.ledger_file) as ledger:
        ledger.start(PLAN.declaration())
        head = ledger.head
    save_tensors(settings.model, {"a": torch.zeros(1)}, {"ledger_head": head})
    settings.check_files()  # the same training, begun again
    save_tensors(settings.model, {"a": torch.zeros(1)}, {"ledger_head": "0" * 64})
    with pytest.raises(UserError, match="which does not come from"):
        settings.check_files()
    with Ledger(tmp_path / "other.jsonl") as ledger:
        ledger.start(replace(PLAN.declaration(), run={"network": "another"}))
    with pytest.raises(UserError, match=r"ledger_file: Expected the ledger of this training"):
        replace(settings, ledger_file=tmp_path / "other.jsonl").check_files()


def test_a_finished_server_that_is_started_again_trains_nothing(hospital, tmp_path, capsys):
    """As when its machine restarts: hospitals that permit another attempt would pay for it."""
    PLAN.write(hospital.plan)
    make_credentials(tmp_path / "keys")
    files = {name: f"out/{name}" for name in ("model", "history", "ledger", "checkpoint")}
    keys = {name: f"{name}.pub.pem" for name in NAMES}
    content = {"plan": hospital.plan.name, "ledger_file": "live.jsonl", "keys": keys, **files}
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(content))
    settings = ServerSettings.read(tmp_path / "server.yaml")
    assert not settings.is_finished
    recorded(settings.ledger_file, PLAN)
    save_tensors(settings.model, {"a": torch.zeros(1)}, {"ledger_head": read_ledger(settings.ledger_file)[-1].last})
    serve = ["federation", "serve", tmp_path / "server.yaml", "--credentials", tmp_path / "keys"]
    assert "The run is finished" in said(capsys, *serve)
    settings.checkpoint.touch()  # the server died between model and history
    assert not settings.is_finished
    settings.checkpoint.unlink()
    recorded(settings.ledger_file, PLAN)  # another attempt began
    assert not settings.is_finished


def recorded(path, plan, node=None):
    """Write a ledger in which a plan has released its first round."""
    with Ledger(path) as ledger:
        ledger.start(replace(plan.declaration(), node=node))
        ledger.record([plan.event(name, 0) for name in ([node] if node else NAMES)])


def test_another_plan_of_the_same_name_is_refused_before_anybody_releases(hospital, tmp_path):
    """By the server and by the hospital: both would record it in the ledger of the first plan."""
    other = replace(PLAN, training=replace(PLAN.training, rounds=PLAN.training.rounds + 1))
    files = dict.fromkeys(("model", "history", "ledger", "checkpoint"), tmp_path / "file")
    settings = ServerSettings(hospital.plan, ledger_file=tmp_path / "live.jsonl", **files)
    settings = replace(settings, keys={name: tmp_path / f"{name}.pub.pem" for name in NAMES})
    recorded(settings.ledger_file, PLAN)
    settings.check_files()
    recorded(participant(hospital).ledger, PLAN, "node-02")
    assert participant(hospital, attempts=1).name == "node-02"  # the same plan continues
    other.write(hospital.plan)
    differing = rf"training\.rounds \(then {PLAN.training.rounds}, now {other.training.rounds}\).*another seed"
    with pytest.raises(UserError, match=rf"^ledger_file: .*{differing}.*Nothing was released"):
        replace(settings).check_files()
    with pytest.raises(UserError, match=rf"^plan: .*{differing}.*Nothing was released"):
        participant(hospital, attempts=1)
    assert participant(hospital, attempts=2).name == "node-02"  # a second attempt was permitted


def test_a_kit_holds_a_plan_a_page_and_settings_whose_commands_are_understood_and_no_private_key(tmp_path):
    PLAN.write(tmp_path / "plan.json")
    authority = make_credentials(tmp_path / "keys").authority
    kits = write_kits(tmp_path / "plan.json", tmp_path / "kits", server="server.example:9443", authority=authority)
    with pytest.raises(UserError, match="Expected a new folder"):
        write_kits(tmp_path / "plan.json", tmp_path / "kits", server="server.example:9443", authority=authority)
    assert [kit.name for kit in kits] == [node.name for node in PLAN.nodes]
    kit, node = kits[1], PLAN.nodes[1]
    assert Plan.read(kit / "plan.json").digest == PLAN.digest
    page = (kit / "READ_ME_FIRST.md").read_text()
    assert page.count(PLAN.digest) == 2
    assert f"takes part with exactly {node.population} patients" in page
    assert "roster" not in page
    SUMS.write(tmp_path / "masked.json")
    masked = write_kits(tmp_path / "masked.json", tmp_path / "masked", server="s.example:9443", authority=authority)[1]
    assert "zetadp federation member plan.json node-02 --key node-02.key" in (masked / "READ_ME_FIRST.md").read_text()
    assert HospitalSettings.read(masked / "node.yaml").plan.name == "roster.json"
    settings = HospitalSettings.read(kit / "node.yaml")
    assert (settings.name, settings.simulation, settings.attempts) == (node.name, False, 1)
    for path in kit.iterdir():
        assert "PRIVATE" not in path.read_text()
        with pytest.raises(UserError):
            read_node_key(path)
    (service,) = yaml.safe_load((kit / "compose.yaml").read_text())["services"].values()
    unit = (kit / "zetadp-node-02.service").read_text()
    shown = [" ".join(service["entrypoint"] + service["command"]), *re.findall(r"/bin/(zetadp .*)", unit)]
    for command in [*shown, *re.findall(r"`(zetadp \w+ [^`]*)`", page)]:
        command_line().parse_args(command.split()[1:])
    # In the container nothing but the state can be written, and the folder of images is the one of the settings.
    state, images = settings.state, settings.images
    assert service["volumes"] == ["./:/site:ro", f"{state}:{state}", f"{images}:{images}:ro"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
