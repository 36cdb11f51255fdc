"""The stages that attack messages, called as functions."""

from __future__ import annotations

import runpy
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from origins import read_origin

from zetadp.core.plan import NodeConstants, Plan, RunName
from zetadp.core.settings import TrainingSettings
from zetadp.nn.models import NetworkSettings
from zetadp.report.riskpage import Evidence

SCRIPTS = Path(__file__).parents[2] / "scripts"
TINY = NetworkSettings(widths=(2, 4), convolutions=1, head="hidden", hidden=4, groups=2)


def stage(name: str, stem: Path, **arguments: object) -> pd.DataFrame:
    """Call a stage, check that picture and tables say how they were made, and return its table."""
    outputs = {
        kind: stem.with_suffix(f".{ending}") for kind, ending in (("csv", "csv"), ("md", "md"), ("picture", "svg"))
    }
    defined = runpy.run_path(str(SCRIPTS / f"{name}.py"))
    defined["main"](**outputs, **arguments, delta=1e-3)
    assert ElementTree.parse(outputs["picture"]).getroot().tag.endswith("svg")
    for kind in ("csv", "md"):
        made = read_origin(outputs[kind].read_text(), name)
        assert (made["cohort"], made["seeds"]) == (defined["COHORT"], defined["SEEDS"])
    return pd.read_csv(outputs["csv"], comment="#")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the results of both stages."""
    folder = tmp_path_factory.mktemp("audit")
    kinds = [
        {"network": "net", "patients": 1, "images": 2, "epsilons": ["inf", 8], "objectives": ["cosine", "euclidean"]},
        {"network": "other", "patients": 2, "images": 1, "epsilons": ["inf"], "objectives": ["cosine"]},
    ]
    stage(
        "invert_gradients",
        folder / "inversion",
        settings={"messages": 2, "steps": 1, "kinds": kinds},
        networks={name: asdict(TINY) for name in ("net", "other")},
        clips={"net": 1.0, "other": 0.5},
        size=8,
        threads=1,
    )
    plans = [
        Plan(RunName(name, "federated", "8", 0), TINY, TrainingSettings(2), (NodeConstants("node-01", 5, 5, 1.0),))
        for name in ("net", "third")
    ]
    stage(
        "name_candidates",
        folder / "candidates",
        backbone=[],
        settings={"patients": 12, "candidates": [2, 10], "epsilons": [1, 8]},
        plans=[plan.to_json() for plan in plans],
        size=8,
    )
    return folder


def test_every_kind_of_message_is_attacked_beside_a_guess(folder):
    rows = (
        pd.read_csv(folder / "inversion.csv", comment="#").groupby(["network", "attack", "epsilon"], sort=False).size()
    )
    assert list(rows) == [4, 4, 4, 4, 4, 4]  # the guess and five kinds: two messages of two images


def test_every_training_is_attacked_at_every_epsilon(folder):
    table = pd.read_csv(folder / "candidates.csv", comment="#")
    assert table.groupby(["network", "candidates"]).size().to_dict() == {
        ("net", 2): 2, ("net", 10): 2, ("third", 2): 2, ("third", 10): 2
    }  # fmt: skip


@pytest.mark.parametrize(("network", "pictures"), [("net", 2), ("other", 1), ("third", 1), ("fourth", 0), (None, 0)])
def test_pages_of_risk_show_attacks_on_their_own_network(network, pictures, folder):
    evidence = Evidence.of(folder.glob("*"), network)
    tables = [table for table in (evidence.candidates, evidence.inversion) if table is not None]
    assert len(evidence.pictures) == len(tables) == pictures
    assert all(set(table["network"]) == {network} for table in tables)
