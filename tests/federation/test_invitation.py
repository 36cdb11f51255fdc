"""What a hospital reads before it agrees to a plan."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from federation.sites import make_plan

from zetadp.base.epsilon import rounded_up
from zetadp.base.validation import UserError
from zetadp.cli.commands import main
from zetadp.core.plan import RunName
from zetadp.federation.flower.approval import invitation
from zetadp.privacy import accounting


def guessed(text: str) -> float:
    return float(re.findall(r"names the right one at most ([\d.]+) %", text)[0])


def test_a_hospital_reads_its_own_part_and_its_cost(tmp_path, capsys):
    plan = make_plan(noise="os", delta=1e-3)
    plan.write(tmp_path / "plan.json")
    assert main(["federation", "show", str(tmp_path / "plan.json"), "--node", "node-02"]) == 0
    said = capsys.readouterr().out
    node = plan.nodes[1]
    epsilon = accounting.epsilon(plan.mechanisms(node.name), plan.delta)
    assert plan.digest in said
    assert f"with {node.population} patients" in said
    assert f"about {node.expected:g} of them" in said
    assert f"epsilon {rounded_up(epsilon)} for each patient" in said
    assert "node-01" not in said
    assert "operating system" in said


def test_the_chance_of_a_right_guess_is_the_trade_off_curves_and_grows_with_attempts_to_learn():
    plan = make_plan(delta=1e-3)
    (misses,) = accounting.trade_off(plan.mechanisms("node-01"), [0.1])
    share = guessed(invitation(plan, "node-01"))
    assert share == pytest.approx(100 * (1 - misses), abs=0.1)
    assert share >= 100 * (1 - misses)
    longer = replace(plan, training=replace(plan.training, rounds=40))
    assert guessed(invitation(longer, "node-01")) > share


def test_seeded_noise_and_no_noise_are_named():
    assert "protects nobody" in invitation(make_plan())
    bare = make_plan(sigma=0.0, run=RunName("complex", "federated", "inf", 0))
    text = invitation(bare)
    assert text.count("no guarantee") == len(bare.nodes)
    assert "names the right one" not in text


def test_an_unknown_node_is_refused():
    with pytest.raises(UserError, match=r"node-01, node-02, node-03\), found elsewhere"):
        invitation(make_plan(), "elsewhere")
