"""The workflow with engine flower: from volumes to a statement, with real processes in between."""

from __future__ import annotations

import json

import pytest

from zetadp.account.attempts import read_ledger
from zetadp.training.plan import Plan


@pytest.mark.slow
@pytest.mark.parametrize("network", ["complex", "pretrained"])
def test_a_federation_takes_the_place_of_the_simulation(federated, network):
    results = federated.root / "results/federated"
    run = results / f"runs/{network}/federated/eps-8/seed-0"
    assert (federated.root / f"logs/train_federated/{network}-federated-eps-8-seed-0.log").exists()
    statement = json.loads((run / "privacy.json").read_text())
    assert (statement["guarantee"], statement["noise_source"]) == ("holds", "os")
    assert 0 < statement["epsilon"] <= 8
    assert statement["rounds"]["happened"] == 4
    assert (run / "metrics.json").stat().st_size > 0
    # The totals are over the nodes' own ledgers, which outlive the results; their patients' images do not.
    ledgers = federated.root / "ledgers/phantom-smoke"
    (hospitals,) = ledgers.glob(f"*-{network}-*.hospitals")
    (server,) = ledgers.glob(f"federated-{network}-*.jsonl")
    for name in ("node-01", "node-02", "node-03"):
        (own,) = (hospitals / name / "ledgers").glob("*.jsonl")
        events = read_ledger(own)[-1].releases()
        assert len(events) == 4
        assert set(events) <= set(read_ledger(server)[-1].releases())
        assert not list(hospitals.rglob("*.h5"))
    (work,) = (results / "federation").glob(f"{network}-*")
    plan = Plan.read(work / "plan.json")
    assert plan == Plan.read(run / "plan.json")
    assert ("backbone" in plan.public) == (network == "pretrained")
    assert not [path for path in work.rglob("*") if path.suffix in (".key", ".secret", ".gz")]
