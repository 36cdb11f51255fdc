from __future__ import annotations

import hmac
from dataclasses import asdict, replace
from itertools import combinations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hospitals.sites import make_plan

from zetadp.accounting.threat import MASKED_SUMS, Sums
from zetadp.base.storage import read_json, write_json
from zetadp.base.validation import UserError
from zetadp.hospitals import roster as roster_module
from zetadp.hospitals.certificates import signature
from zetadp.hospitals.masks import Masking, Place, Try, UnsafeTryError, fresh_value
from zetadp.hospitals.protocol import encode
from zetadp.hospitals.roster import CURVE, Member, Roster
from zetadp.training.plan import Plan

SIZE = 1 << 16
PLAN = make_plan(nodes=4, threat=MASKED_SUMS, sums=Sums(colluding=0, missing=2))
NAMES = [node.name for node in PLAN.nodes]
AGREEMENT, SIGNING = ({name: ec.generate_private_key(CURVE) for name in NAMES} for _ in range(2))
WEIGHTS, PLACE = "a" * 64, Place("training", 0)


def roster_of(plan=PLAN, agreement=AGREEMENT, signing=SIGNING) -> Roster:
    return Roster(plan, tuple(Member.create(plan, name, agreement[name], signing[name]) for name in agreement))


ROSTER = roster_of()


def try_of(names=NAMES, roster=ROSTER) -> Try:
    return Try(roster, PLACE, tuple(fresh_value(roster, name, SIGNING[name], PLACE) for name in names))


def masking(attempt: Try, name: str, weights=WEIGHTS, **changes) -> Masking:
    fresh = next((value for value in attempt.values if value.name == name), None)
    return Masking(attempt, name, **{"key": AGREEMENT[name], "fresh": fresh, "weights": weights, **changes})


def masks(attempt: Try, weights=WEIGHTS, size=SIZE) -> dict[str, torch.Tensor]:
    nothing = torch.zeros(1, size, dtype=torch.int64)
    return {name: masking(attempt, name, weights)(nothing) for name in attempt.names}


@pytest.mark.parametrize("names", [c for n in (2, 3, 4) for c in combinations(NAMES, n)], ids=" ".join)
def test_the_masks_of_any_members_cancel(names):
    found = masks(try_of(names), size=300_001)  # more than two blocks, and not a whole number of them
    assert all(found[name].count_nonzero() > 300_000 for name in names)
    assert not sum(found.values()).any()


@pytest.mark.parametrize("names", [c for n in (1, 2, 3) for c in combinations(NAMES, n)], ids=" ".join)
def test_less_than_the_whole_sum_looks_uniformly_random(names):
    """Also beside an extreme message: what is hidden must not show in any byte of the words."""
    attempt = try_of()
    extreme = torch.full((1, SIZE), (1 << 61) + 1)
    part = sum(masking(attempt, name)(extreme) for name in names)
    bytes_of = np.frombuffer(encode(part[0]), np.uint8).reshape(SIZE, 8)
    for place in range(8):
        counts = np.bincount(bytes_of[:, place], minlength=256)
        chi = ((counts - SIZE / 256) ** 2 / (SIZE / 256)).sum()
        assert 120 < chi < 480  # 255 degrees of freedom: six standard deviations below, ten above
    neighbours = np.corrcoef(part[0, :-1].double(), part[0, 1:].double())[0, 1]
    assert abs(neighbours) < 6 / SIZE**0.5


OTHER = replace(PLAN, cohort="another")
NEW_KEY = ec.generate_private_key(CURVE)
FURTHER = roster_of(signing=SIGNING | {NAMES[3]: NEW_KEY})


def test_the_streams_are_those_of_the_documented_construction():
    """Written out once more, with names whose order is not that of the plan."""
    renamed = [replace(node, name=name) for node, name in zip(PLAN.nodes, "dcba", strict=True)]
    plan = replace(PLAN, nodes=tuple(renamed))
    keys, signing = (dict(zip("dcba", own.values(), strict=True)) for own in (AGREEMENT, SIGNING))
    roster = roster_of(plan, keys, signing)
    place = Place("t", 5, 6)
    values = tuple(fresh_value(roster, name, signing[name], place) for name in "db")
    attempt = Try(roster, place, values)
    found = [Masking(attempt, v.name, keys[v.name], v, WEIGHTS)(torch.zeros(100, dtype=torch.int64)) for v in values]
    points = [keys[name].public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint).hex() for name in "db"]
    transcript = ["zetadp masked sum 1", plan.digest, roster.digest, "t", "5", "6", "2"]
    transcript += ["d", values[0].value, "b", values[1].value, WEIGHTS]
    inner = b"".join(len(part).to_bytes(8, "big") + part.encode() for part in transcript)
    info = b"".join(len(part).to_bytes(8, "big") + part for part in (b"d", b"b", *map(str.encode, points), inner))
    secret = keys["b"].exchange(ec.ECDH(), keys["d"].public_key())
    extracted = hmac.digest(bytes(48), secret, "sha384")
    key = hmac.digest(extracted, info + b"\x01", "sha384")[:32]
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(800))
    expected = torch.from_numpy(np.frombuffer(stream, "<i8").copy())
    assert torch.equal(found[0], expected)  # the lower place in the plan adds
    assert torch.equal(found[1], -expected)


# -- Who may be in a try ---------------------------------------------------------------------------------------------


TRY = try_of()
OTHER_KEYS = AGREEMENT | {NAMES[3]: NEW_KEY}
REFUSED = {
    "nobody": {"values": ()},
    "alone": {"values": TRY.values[:1]},
    "repeated": {"values": (TRY.values[0], *TRY.values)},
    "another order": {"values": TRY.values[::-1]},
    "unknown": {"values": (*TRY.values, replace(TRY.values[0], name="invented"))},
    "another's value": {"values": (TRY.values[0], replace(TRY.values[0], name=NAMES[1]))},
    "a value without its signature": {"values": (replace(TRY.values[0], value="00" * 32), *TRY.values[1:])},
    "a value of another round": {"values": TRY.values, "place": Place("training", 1)},
    "a value of another try": {"values": TRY.values, "place": Place("training", 0, 1)},
    "a value of another training": {"values": TRY.values, "place": Place("another", 0)},
    "a value for another roster": {"values": TRY.values, "roster": roster_of(agreement=OTHER_KEYS)},
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_try_that_is_not_the_members_own_is_refused(what):
    assert replace(TRY) == TRY
    with pytest.raises(UnsafeTryError):
        replace(TRY, **REFUSED[what])


def test_a_hospital_takes_part_only_in_a_large_enough_try_with_its_own_value():
    attempt = try_of(NAMES[:3])
    masking(attempt, NAMES[0])
    for missing in (0, 1):
        plan = replace(PLAN, sums=Sums(colluding=0, missing=missing))
        try_of(NAMES[missing:], roster_of(plan))
        with pytest.raises(UnsafeTryError, match=f"at least {4 - missing} of"):
            try_of(NAMES[missing + 1 :], roster_of(plan))
    with pytest.raises(UnsafeTryError, match="the value that node-04 gave"):
        masking(attempt, NAMES[3], fresh=try_of().values[3], key=AGREEMENT[NAMES[3]])
    with pytest.raises(UnsafeTryError, match="the value that node-01 gave"):
        masking(attempt, NAMES[0], fresh=try_of().values[0])
    with pytest.raises(UnsafeTryError, match="the value that node-01 gave"):
        masking(attempt, NAMES[0], fresh=attempt.values[1])
    with pytest.raises(UnsafeTryError, match="agreement key of node-01"):
        masking(attempt, NAMES[0], key=AGREEMENT[NAMES[1]])


# -- The roster ------------------------------------------------------------------------------------------------------


def files_of(folder, roster=ROSTER):
    for member in roster.members:
        write_json(folder / f"{member.name}.json", asdict(member))
    return [folder / f"{member.name}.json" for member in roster.members]


def test_a_roster_is_the_same_from_its_file_and_from_member_files_in_any_order(tmp_path):
    made = Roster.from_files(PLAN, files_of(tmp_path)[::-1])
    made.write(tmp_path / "roster.json")
    again = Roster.read(tmp_path / "roster.json")
    assert again.digest == made.digest == ROSTER.digest != FURTHER.digest
    assert (again.plan, again.members) == (PLAN, ROSTER.members)
    for name in NAMES:
        again.check_own(name, AGREEMENT[name], SIGNING[name])
    for agreement, signing, what in ((1, 0, "agreement"), (0, 1, "signing")):
        with pytest.raises(UserError, match=f"the {what} key of node-01"):
            again.check_own(NAMES[0], AGREEMENT[NAMES[agreement]], SIGNING[NAMES[signing]])


def altered(folder, change, resign=None):
    """Return the roster of member files of which the first was altered, and perhaps signed again."""
    files = files_of(folder)
    content = read_json(files[0]) | change
    if resign is not None:
        del content["signature"]
        content["signature"] = signature(content, resign)
    write_json(files[0], content)
    return Roster.from_files(PLAN, files)


OFF_CURVE = f"02{1:096x}"  # no point has this first coordinate
SECOND = ROSTER.members[1]
NEGATED = ("02" if SECOND.agreement.startswith("03") else "03") + SECOND.agreement[2:]
UNCOMPRESSED = ROSTER.members[0].agreement.upper()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": NAMES[1]}, "altered after it was signed"),
        ({"agreement": SECOND.agreement}, "altered after it was signed"),
        ({"signing": SECOND.signing}, "altered after it was signed"),
        ({"plan": OTHER.digest}, "altered after it was signed"),
        ({"purpose": "another"}, "purpose"),
        ({"more": "x"}, "'more'"),
        ({"agreement": []}, "agreement: expected string"),
        ({"agreement": OFF_CURVE}, "on the curve"),
        ({"agreement": "00"}, "on the curve"),
        ({"agreement": UNCOMPRESSED}, "on the curve"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_member_file_that_was_altered_is_refused(change, said, tmp_path):
    with pytest.raises(UserError, match=said):
        altered(tmp_path, change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"plan": OTHER.digest}, "keys for the plan"),
        ({"agreement": SECOND.agreement}, "one key at several"),
        ({"agreement": NEGATED}, "one key at several"),
        ({"name": "invented"}, "each node of the plan once"),
        ({"name": NAMES[1]}, "each node of the plan once"),
    ],
    ids=["plan", "equal key", "negated key", "invented", "twice"],
)
def test_a_hospital_that_signs_what_does_not_fit_is_refused(change, said, tmp_path):
    with pytest.raises(UserError, match=said):
        altered(tmp_path, change, SIGNING[NAMES[0]])


def test_names_that_differ_in_capitals_alone_are_refused(tmp_path):
    """In a plan that is made, in its file, and in a roster, which holds it."""
    said = "differ in more than .*capitals.*'NODE-01' and 'node-01'"
    with pytest.raises(UserError, match=said):
        replace(PLAN, nodes=(*PLAN.nodes[:2], replace(PLAN.nodes[0], name="NODE-01")))
    content = PLAN.to_json()
    content["nodes"][1]["name"] = "NODE-01"
    write_json(tmp_path / "plan.json", content)
    write_json(tmp_path / "roster.json", {"purpose": roster_module.ROSTER, "members": [], "plan": content})
    for read in (lambda: Plan.read(tmp_path / "plan.json"), lambda: Roster.read(tmp_path / "roster.json")):
        with pytest.raises(UserError, match=said):
            read()


def test_a_missing_hospital_and_another_curve_are_refused(tmp_path):
    with pytest.raises(UserError, match="each node of the plan once"):
        Roster.from_files(PLAN, files_of(tmp_path)[:3])
    other = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(UserError, match="P-384"):
        Member.create(PLAN, NAMES[0], AGREEMENT[NAMES[0]], other)
    with pytest.raises(UserError, match="P-384"):
        Member.create(PLAN, NAMES[0], other, SIGNING[NAMES[0]])
