"""What another party sends is true, or it is refused: names and numbers of a plan, addresses, lines of a ledger."""

from __future__ import annotations

import copy
import json
import signal

import pytest
from commanded import mistake
from cryptography import x509
from hospitals.sites import make_plan

from zetadp.account.attempts import FORMAT
from zetadp.account.register import START, BrokenChainError, Link
from zetadp.base.validation import UserError
from zetadp.cli import main
from zetadp.hospitals.certificates import read_certificate
from zetadp.hospitals.ledgers import Mirror
from zetadp.training.plan import Plan

PLAN = make_plan(noise="os", patients=4)


def changed(path: str, value: object) -> dict:
    """Return the content of a plan with another value at a path such as ``nodes.0.name``."""
    content = copy.deepcopy(json.loads(json.dumps(PLAN.to_json())))
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    place = content
    for key in keys:
        place = place[key]
    place[last] = value
    return content


FORGED_PLANS = {
    "cohort": json.dumps(changed("cohort", "glioma\nnode-02\n  costs:    epsilon 0.1\x1b[8m")),
    "plan.json": "[" * 100_000,
}


@pytest.mark.parametrize("named", FORGED_PLANS)
def test_nothing_is_made_or_printed_of_a_forged_plan(named, tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text(FORGED_PLANS[named])
    message = mistake(capsys, "federation", "member", path, "node-02", "--key", "node-02.key")
    assert named in message
    assert message.rstrip("\n").isprintable()


NO_NAMES = ("../../x", "a\n  costs:    epsilon 0.1", 7)
REFUSED = {
    **dict.fromkeys(("run.network", "run.arm", "cohort", "task.name"), NO_NAMES),
    "training.rounds": [10**9, 2.5, True, "4", 0, float("nan"), float("inf")],
    "training.clip": [float("inf"), float("nan"), 0, -1, "2", True, 1e300, 1e-300],
    "training.images_per_patient": [2.5, True, 10**9],
    "nodes.1.population": [4.5, "4", True, float("inf"), 10**12],
    "nodes.1.expected": [1e-300, float("nan"), "2", True, 6],
    "nodes.1.noise_multiplier": [1e-200, 1e-6, float("inf"), float("nan"), -1, True, "1.5"],
    "delta": [0, 1, 2, -1, 1e-300, float("nan"), "0.001", True],
    "run.epsilon": ["unclipped", "nan", "1e400", "8_0", " 80 ", "-1", "0", [8], 8, *NO_NAMES],
    "run.seed": [1.5, "0", True, -1],
    "units_of_a_person": [0.5, True, 0, 10**9],
    "task": [[], "brain", {"name": 3}, None],
    "network.widths": [[2**40], [0], "8", [1.5]],
    "threat": ["hope", 3],
    "public": [{"noise": "os"}, {"training": {"rounds": 0}}, {"backbone": 3}, []],
    "format": [1, None],
    "surprise": [1],
    "nodes": [[]],
    "nodes.1.name": ["node-01", *NO_NAMES],
}


def test_a_name_or_number_of_a_plan_that_cannot_be_is_refused_at_once_in_a_line_that_can_be_printed():
    signal.alarm(60)  # ends the tests' process: a plan that hangs is a failure
    accepted = []
    for key, value in ((key, value) for key, values in REFUSED.items() for value in values):
        try:
            Plan.from_json(changed(key, value))
        except UserError as error:
            if str(error).isprintable():
                continue
        accepted.append((key, value))
    signal.alarm(0)
    assert not accepted


def lines_of(*entries: dict) -> list[str]:
    links, head = [], START
    for entry in entries:
        links.append(Link.after(head, entry))
        head = links[-1].head
    return [link.text for link in links]


BEGUN = {"kind": "start", "format": FORMAT, "federation": "x", **PLAN.declaration().to_json()}
ROUND = {
    "kind": "round",
    "releases": [{"nodes": ["n"], **{k: v for k, v in PLAN.event("node-01", 0).to_json().items() if k != "node"}}],
}
FORGED = {
    "line break": lambda: [lines_of(BEGUN)[0].replace('","entry"', '",\n"entry"')],
    "carriage return": lambda: [lines_of(BEGUN)[0].replace('","entry"', '",\r"entry"')],
    "another spelling": lambda: [lines_of(BEGUN)[0].replace('","entry"', '" ,"entry"')],
    "a further key": lambda: [lines_of(BEGUN)[0][:-1] + ',"more":1}'],
    "a key twice": lambda: [lines_of(BEGUN)[0].replace('"kind": "start"', '"kind": "round", "kind": "start"')],
    "deep": lambda: ['{"chain":"' + START + '","entry":' + "[" * 100_000 + "]" * 100_000 + "}"],
    "no kind": lambda: lines_of(BEGUN, {"no kind": 1}),
    "an unknown kind": lambda: lines_of(BEGUN, {"kind": "release", "releases": [{"nodes": ["n"], "round": 0}]}),
    "no object": lambda: ["[]"],
    "no entry": lambda: ['{"chain":"x"}'],
    "no list": lambda: lines_of(BEGUN, {"kind": "round", "releases": 5}),
    "no release": lambda: lines_of(BEGUN, {"kind": "round", "releases": [{"nodes": ["n"], "round": 0}]}),
    "no number": lambda: [
        line.replace('"population": 1', '"population": Infinity')
        for line in lines_of(BEGUN, {"kind": "round", "releases": [{"nodes": ["n"], "round": 0, "population": 1}]})
    ],
    "an unknown law of noise": lambda: lines_of(
        BEGUN, {**ROUND, "releases": [{**ROUND["releases"][0], "kind": {"law": "unknown", "noise_multiplier": 1.0}}]}
    ),
    "before the start": lambda: lines_of(ROUND),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_line_that_is_not_as_a_ledger_writes_it_never_reaches_the_servers_copy(what, tmp_path):
    copy_ = Mirror(tmp_path / "copies/node.jsonl")
    with pytest.raises(BrokenChainError):
        copy_.extend(FORGED[what]())
    assert Mirror(copy_.path).known == ""
    honest = lines_of(BEGUN)
    Mirror(copy_.path).extend(honest)
    assert copy_.path.read_text().splitlines() == honest


HOSTS = {
    "müller-klinik.example": False,
    "server.example:9443": False,
    "https://server.example": False,
    "server example": False,
    "": False,
    "a..example": False,
    "a-.example": False,
    "fe80::1%eth0": False,
    "a\nb": False,
    "server_1.example": True,
    "192.0.2.7": True,
    "2001:db8::1": True,
    "xn--mller-klinik-dlb.example": True,
    "ec2-203-0-113-25.compute-1.some-very-long-region-name.hospital-network.amazonaws.example": True,
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_is_in_the_certificate_or_nothing_is_made(host, tmp_path, capsys):
    code = main(["federation", "certificates", str(tmp_path / "keys"), "--hosts", "good.example", host])
    if HOSTS[host]:
        extensions = read_certificate(tmp_path / "keys/server.pem").extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(name.value) for name in names] == ["good.example", host, "127.0.0.1", "localhost"]
    else:
        assert (code, (tmp_path / "keys").exists()) == (1, False)
        assert "--hosts" in capsys.readouterr().err
