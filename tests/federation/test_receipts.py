"""A server's receipt shows a hospital that its ledgers are not the newest, and cannot be altered."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from federation.sites import DirectLine, coordinator, make_hospital, make_plan

from zetadp.base.validation import UserError
from zetadp.cli import main
from zetadp.core.settings import Patience
from zetadp.federation.certificates import Credentials, _host, make_credentials, read_node_key
from zetadp.federation.ledgers import write_receipts
from zetadp.federation.settings import ServerSettings
from zetadp.privacy import register
from zetadp.privacy.book import Book
from zetadp.privacy.ledger import read_ledger
from zetadp.privacy.register import REGISTER, START, Link, follow

PLAN = make_plan(rounds=3, noise="os")
NAME = "node-02"


def settings(folder: Path) -> ServerSettings:
    files = {name: folder / "out" / name for name in ("model", "history", "ledger")}
    live = {"ledger_file": folder / "server/ledger.jsonl", "checkpoint": folder / "server/checkpoint.safetensors"}
    return ServerSettings(folder / "plan.json", {}, **files, **live)


def train(folder: Path, tamper=None) -> list[Path]:
    """Train, and return the receipts, as the server writes them at the end, whatever the end is."""
    PLAN.write(folder / "plan.json")
    own = settings(folder)
    keys = [read_node_key(Credentials(folder / "keys").node(node.name)[1]) for node in PLAN.nodes]
    hospitals = [make_hospital(PLAN, place, folder, key=key) for place, key in enumerate(keys)]
    line = DirectLine(hospitals, tamper)
    try:
        coordinator(PLAN, line, folder, Patience(poll_seconds=0.001, give_up_seconds=0.1)).run()
    finally:
        written = write_receipts(own, Credentials(folder / "keys"))
    return written


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    make_credentials(folder / "keys", [node.name for node in PLAN.nodes])
    assert [path.stem for path in train(folder)] == [node.name for node in PLAN.nodes]
    return folder


@pytest.fixture
def site(finished, tmp_path):
    """The same in a folder where a test may spoil it."""
    return shutil.copytree(finished, tmp_path / "site")


def verify(site: Path, name: str = NAME) -> int:
    where = [
        "--receipt",
        site / f"out/receipts/{name}.json",
        "--authority",
        site / "keys/authority.pem",
        "--server",
        "127.0.0.1",
    ]
    return main(["verify", *map(str, where), "--ledgers", str(site / NAME / "ledgers")])


def forged_by(site: Path, *, host: str = "127.0.0.1", days: tuple[int, int] = (-1, 1), signs: bool = False) -> None:
    """Sign the receipt again, with another certificate of the same authority."""
    now = datetime.now(UTC)
    authority, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of an institution")])

    def certificate(key: ec.EllipticCurvePrivateKey, first: int, last: int, *, signs: bool) -> bytes:
        made = x509.CertificateBuilder().subject_name(issuer).issuer_name(issuer).public_key(key.public_key())
        made = made.serial_number(1).not_valid_before(now + timedelta(first)).not_valid_after(now + timedelta(last))
        made = made.add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
        made = made.add_extension(x509.SubjectAlternativeName([_host(host)]), critical=False)
        return made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    (site / "keys/authority.pem").write_bytes(certificate(authority, -99, 99, signs=True))
    (site / "keys/server.pem").write_bytes(certificate(own, *days, signs=signs))
    private = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (site / "keys/server.key").write_bytes(private)
    write_receipts(settings(site), Credentials(site / "keys"))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"days": (-9, -8)}, "not in force"),
        ({"days": (8, 9)}, "not in force"),
        ({"host": "canteen.example"}, "not for 127.0.0.1"),
        ({"host": "127.0.0.2"}, "not for 127.0.0.1"),
        ({"signs": True}, "of an authority"),
    ],
)
def test_a_receipt_by_another_certificate_than_the_servers_is_wrong(how, words, site, capsys):
    forged_by(site)
    assert verify(site) == 0
    forged_by(site, **how)
    assert verify(site) == 1
    assert words in capsys.readouterr().out


def test_a_receipt_names_the_last_line_of_a_hospitals_own_ledger(site, capsys):
    assert verify(site) == 0
    assert "node-02, after 3 round(s) of the plan" in capsys.readouterr().out
    (attempt,) = read_ledger(site / NAME / f"ledgers/{PLAN.label}.jsonl")
    content = json.loads((site / f"out/receipts/{NAME}.json").read_text())
    assert (content["head"], content["plan"]) == (attempt.last, PLAN.digest)
    assert "PRIVATE" not in content["certificate"]


def spoil(site: Path, what: str) -> None:
    receipt, ledger = site / f"out/receipts/{NAME}.json", site / NAME / f"ledgers/{PLAN.label}.jsonl"
    content = json.loads(receipt.read_text())
    match what:
        case "head" | "round" | "node" | "plan":
            other = json.loads((site / "out/receipts/node-01.json").read_text())
            content[what] = {**other, "plan": "0" * 64, "round": 2}[what]
        case "signature":
            content["signature"] = content["signature"][:-1] + ("0" if content["signature"][-1] != "0" else "1")
        case "server of others":
            other = make_credentials(site / "others", [])
            write_receipts(replace(settings(site), ledger=site / "theirs/ledger"), other)
            content = json.loads((site / f"theirs/receipts/{NAME}.json").read_text())
        case "old copy":  # with a register that agrees with it, as in a backup of the whole folder
            ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
            (ledger.parent / "register").write_text(
                "".join((ledger.parent / "register").read_text().splitlines(keepends=True)[:1])
            )
        case "ledger gone":
            shutil.rmtree(ledger.parent)
    receipt.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("head", "it was altered after it was signed"),
        ("round", "it was altered after it was signed"),
        ("node", "it was altered after it was signed"),
        ("plan", "it was altered after it was signed"),
        ("signature", "it was altered after it was signed"),
        ("server of others", "this authority did not issue it"),
        ("old copy", "an older copy of the ledgers was put back"),
        ("ledger gone", "or a ledger is gone"),
    ],
)
def test_what_is_wrong_with_receipt_or_ledgers_is_found(what, words, site, capsys):
    spoil(site, what)
    assert verify(site) == 1
    said = capsys.readouterr()
    wrong = [line for line in said.out.splitlines() if line.startswith("wrong: ")]
    assert any(words in line for line in wrong)
    assert "Do not rely on it" in said.err
    if what == "ledger gone":
        assert any("agrees with its register: there is no such folder" in line for line in wrong)
    if what == "old copy":
        assert len(wrong) == 1  # the register agrees: without the receipt nothing shows


def test_the_receipt_of_another_hospital_is_not_held(site):
    assert verify(site, "node-01") == 1


def test_a_training_that_is_given_up_leaves_receipts_of_what_was_released(tmp_path):
    make_credentials(tmp_path / "keys", [node.name for node in PLAN.nodes])
    with pytest.raises(UserError, match="no answer from node-03"):
        train(tmp_path, lambda request, reply: None if (request.round, reply.name) == (1, "node-03") else reply)
    rounds = {path.stem: json.loads(path.read_text())["round"] for path in (tmp_path / "out/receipts").iterdir()}
    assert rounds == {"node-01": 2, "node-02": 2, "node-03": 1}


# What a node's own key says of its ledger


def signed(site: Path, ledger: Path, key: Path | str = f"{NAME}.pub.pem") -> int:
    return main(["verify", str(ledger), "--key", str(site / "keys" / key)])


def live(site: Path) -> Path:
    return site / NAME / f"ledgers/{PLAN.label}.jsonl"


def test_a_node_signs_its_ledger_and_the_servers_copy_carries_the_signature(site):
    for ledger in (live(site), site / f"server/ledger.nodes/{NAME}.jsonl"):
        assert signed(site, ledger) == 0
        assert signed(site, ledger, "node-01.pub.pem") == 1


@pytest.mark.parametrize("kept", [{"signed"}, set()])
def test_a_chain_and_a_register_made_anew_lack_the_nodes_signature(site, capsys, kept):
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
    assert signed(site, ledger) == 1
    assert "wrong" in capsys.readouterr().out


def test_lines_after_the_last_signature_are_not_signed(site):
    copy = site / f"server/ledger.nodes/{NAME}.jsonl"
    *lines, _ = copy.read_text().splitlines()
    copy.write_text("\n".join(lines) + "\n")
    assert signed(site, copy) == 1
