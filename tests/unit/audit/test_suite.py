"""The audits of an experiment as a whole, their table, their picture, and how a refuted claim ends the rule."""

from __future__ import annotations

import json
import logging
import math
import runpy
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from zetadp.accounting.calibration import noise_for_epsilon
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.threat import Sums
from zetadp.audit.detection import Claim, Errors
from zetadp.audit.settings import AuditSettings
from zetadp.audit.suite import frame, plan, run_audits, sheet
from zetadp.audit.trainings import Audited, AuditResult
from zetadp.base.epsilon import Target
from zetadp.base.runfolder import RunName
from zetadp.base.validation import UserError
from zetadp.base.workflow import typed
from zetadp.nn.settings import NetworkSettings
from zetadp.training.plan import NodeConstants, Plan
from zetadp.training.settings import TrainingSettings

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts/audit.py"))
SIGMA = noise_for_epsilon(8, 1e-3, 0.5, 20)
TARGET = Audited("training, federated at ε = 8, 20 rounds", SIGMA, probability=0.5, rounds=20)


ONCE = Claim({NoisySum(1.0, 1.0): 1})
HONEST = (
    AuditResult(Audited("difference of nodes"), ONCE, Errors(120, 120, 300, 300, 0.999)),
    AuditResult(replace(TARGET, power=0.9), Claim(TARGET.mechanisms), Errors(100, 100, 600, 600, 0.999)),
)
REFUTED = (AuditResult(Audited("bad"), ONCE, Errors(90, 90, 1466, 1466, 0.999)), *HONEST)


def test_the_plan_shares_one_false_alarm_among_all_audits_and_finds_its_fault_in_every_one():
    audits = plan([TARGET, TARGET], delta=1e-3, settings=AuditSettings())
    assert sum(1 - planned.confidence for planned in audits) == pytest.approx(1e-3)
    assert all(planned.power is None or 0.985 < planned.power < 1 for planned in audits)
    assert sum(planned.power is not None for planned in audits) == 6
    assert [planned.mechanisms for planned in audits[-2:]] == [TARGET.mechanisms] * 2
    assert len({planned.seed for planned in audits}) == len(audits)


def test_a_bound_on_rounds_lowers_trials_and_says_so(caplog):
    with caplog.at_level(logging.INFO):
        few = plan([TARGET], delta=1e-3, settings=AuditSettings(most_rounds=10_000))[-1]
    assert few.trials == 10_000 // 40
    assert few.power < 0.9
    assert "most_rounds" in caplog.text
    first, *_, last = plan([TARGET], delta=1e-3, settings=AuditSettings(trials=77))
    assert last.trials == 77 < first.trials


def test_audits_in_several_processes_find_the_same_in_the_same_order(caplog):
    half = Audited("half", probability=0.5, population=2, trials=20)
    audits = [replace(half, name=f"B = {clip}", clip=clip, seed=clip) for clip in (1, 2, 3)]
    with caplog.at_level(logging.INFO):
        found = run_audits(audits, 2)
    assert {record.message.partition(": ")[2] for record in caplog.records} == {each.audited.name for each in found}
    assert found == run_audits(audits)
    assert [each.audited.name for each in found] == ["B = 1", "B = 2", "B = 3"]
    assert len({result.errors for result in found}) == 3


def test_the_table_prints_no_claim_below_the_figure():
    table = frame(HONEST).assign(claimed=7.9901)
    assert [row[3] for row in sheet(table, "default").rows] == ["8", "8"]


def declared(
    sizes: list[int], expected: list[float], rounds: int = 3, *, epsilon: float = 8, arm: str = "federated", **more
) -> Plan:
    nodes = tuple(NodeConstants(f"node-{n}", *each) for n, each in enumerate(zip(sizes, expected, strict=True)))
    return Plan(RunName("complex", arm, Target(epsilon), 0), NetworkSettings(), TrainingSettings(rounds), nodes, **more)


def script_arguments(tmp_path: Path) -> dict:
    plans = [declared([12, 10], [5.0, 5.0], epsilon=epsilon) for epsilon in (8, math.inf)]
    noise = tmp_path / "noise.json"
    noise.write_text(json.dumps({"found_for": plans[0].for_calibration().digest, "noise_multiplier": 2.0}))
    return {
        "noise": [noise],
        "csv": tmp_path / "audit.csv",
        "md": tmp_path / "audit.md",
        "picture": tmp_path / "audit.svg",
        "plans": [json.loads(json.dumps(plan.to_json())) for plan in plans],
        "delta": 1e-3,
        "noise_source": "seeded",
        "settings": {"trials": None, "most_rounds": 1000},
        "experiment": "x",
        "refuted": str(tmp_path / "refuted.md"),
        "threads": 2,
    }


@pytest.mark.parametrize("claims_stand", [True, False])
def test_the_script_writes_everything_and_ends_in_error_where_a_claim_fell(tmp_path, monkeypatch, claims_stand):
    main = SCRIPT["main"]
    monkeypatch.setitem(main.__globals__, "plan", lambda targets, **how: [])
    monkeypatch.setitem(main.__globals__, "run_audits", lambda audits, threads: HONEST if claims_stand else REFUTED)
    given = script_arguments(tmp_path)
    (tmp_path / "refuted.md").write_text("of an earlier run")
    if claims_stand:
        main(**typed(main, given))
        assert not (tmp_path / "refuted.md").exists()
    else:
        with pytest.raises(UserError, match=r"show more \(bad: claimed 3.139"):
            main(**typed(main, given))
        assert "refuted" in (tmp_path / "refuted.md").read_text()
    table = pd.read_csv(given["csv"], comment="#")
    assert list(table["claimed"]) == [f.claim.epsilon for f in (HONEST if claims_stand else REFUTED)]
    assert given["md"].read_text().startswith("**Claimed")
    assert given["picture"].stat().st_size > 10_000


def test_the_script_audits_each_mechanism_of_the_grid_once_at_the_node_that_draws_most():
    federated, central = ([12, 10], [5.0, 5.0]), ([20], [10.0])
    plans = [
        declared(*central, arm="central").with_noise(2.0),
        declared(*federated, epsilon=1).with_noise(9.0),
        declared(*federated).with_noise(2.0),
        declared(*federated, arm="sums", threat="masked_sums", sums=Sums(0)).with_noise(2.0),
        declared([12, 10], [12.0, 10.0], 7).with_noise(5.0),
        declared(*federated, unit="image", units_of_a_person=2).with_noise(3.0),
    ]
    targets = SCRIPT["targets_of"](plans + plans, "os")
    found = [(t.probability, t.noise_multiplier, t.rounds) for t in targets]
    assert found == [(0.5, 9.0, 3), (0.5, 2.0, 3), (1.0, 5.0, 7)]
    assert {target.noise for target in targets} == {"os"}
    assert "central at ε = 8 and federated at ε = 8" in targets[1].name
