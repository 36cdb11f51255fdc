"""The stage that attacks finished models, called as a function."""

from __future__ import annotations

import runpy
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from zetadp.audit.membership import RATES
from zetadp.audit.settings import MembershipSettings
from zetadp.base.validation import UserError

MAIN = runpy.run_path(str(Path(__file__).parents[2] / "scripts/audit_membership.py"))["main"]
# So few trials that no arm can leave the region: the attack proves nothing.
FEW = asdict(MembershipSettings(patients=2, slices=1, size=8, rounds=1, overfitted=1, shadows=20, trainings=16))


def stage(folder: Path, settings: dict, network: dict | None = None) -> None:
    paths = {"table": folder / "membership.csv", "picture": folder / "membership.svg"}
    MAIN(**paths, settings=settings, network=network, delta=1e-3, device="cpu")


def test_outputs_are_written_before_the_stage_fails_and_copies_stay(tmp_path):
    with pytest.raises(UserError, match=r"proves nothing.*refuted-membership\.csv"):
        stage(tmp_path, FEW)
    table = pd.read_csv(tmp_path / "membership.csv")
    assert list(table["arm"].unique()) == ["private, epsilon 8", "clipped, no noise", "unclipped, overfitted"]
    assert (table.groupby("arm").size() == len(RATES)).all()
    assert (table["trials_in"] + table["trials_out"] == FEW["trainings"]).all()
    needed = {"fpr", "tpr", "lower", "upper", "allowed_reader", "allowed_server"}
    assert table[list(needed)].notna().all(axis=None)
    # The server sees more than a reader, and is allowed more.
    assert (table["allowed_server"] >= table["allowed_reader"]).all()
    assert not table[["leaves_reader", "leaves_server"]].any(axis=None)
    for name in ("membership.csv", "membership.svg"):
        assert (tmp_path / f"refuted-{name}").read_bytes() == (tmp_path / name).read_bytes()
    assert ElementTree.parse(tmp_path / "membership.svg").getroot().tag.endswith("svg")
