"""A total that no run may cross: not by another run, not by another release of a round, not after a restart."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ledger_builder import COST, DECLARATION, DELTA, EVENT, FILTER, KIND, ROUNDS, record

from zetadp.account.attempts import read_ledger
from zetadp.account.book import Book
from zetadp.account.budget import Cap, CapError
from zetadp.account.exposure import declared_run, total
from zetadp.account.ledger import Ledger
from zetadp.accounting import composition
from zetadp.accounting.events import Event
from zetadp.accounting.kinds import NoisySum
from zetadp.base.validation import UserError

ALWAYS = NoisySum(1.0, 2.0)


def spent(folder: Path) -> float:
    return total(Book.read(folder).runs(), DELTA)


def event(number: int) -> Event:
    return replace(EVENT, round=number)


def run(path, cap: Cap, rounds: int = ROUNDS) -> None:
    with Ledger(path) as ledger:
        with cap.starting(path, DECLARATION):
            ledger.start(DECLARATION)
        for number in range(rounds):
            ledger.record([event(number)])


def test_runs_add_up_and_one_that_would_cross_the_cap_records_nothing(tmp_path):
    cap = Cap(1.001 * FILTER[2], DELTA)
    run(tmp_path / "first.jsonl", cap)
    run(tmp_path / "second.jsonl", cap)
    assert spent(tmp_path) == pytest.approx(FILTER[2])
    assert spent(tmp_path) <= cap.epsilon
    with pytest.raises(UserError, match=r"would bring the total .* The cap is .* Nothing was released"):
        run(tmp_path / "third.jsonl", cap)
    assert read_ledger(tmp_path / "third.jsonl") == []
    run(tmp_path / "third.jsonl", Cap(1.001 * FILTER[3], DELTA))


def test_an_attempt_counts_to_its_declared_end_from_its_start(tmp_path):
    """Also before it has released anything: two runs that start together must not both find room for one."""
    cap = Cap(1.001 * COST[ROUNDS], DELTA)
    for rounds in (0, 1):
        folder = tmp_path / str(rounds)
        run(folder / "first.jsonl", cap, rounds)
        with pytest.raises(UserError, match="The cap is"):
            run(folder / "second.jsonl", cap)


def test_another_release_of_a_round_is_refused_where_it_would_cross_the_cap(tmp_path):
    path = tmp_path / "first.jsonl"
    for room, allowed in ((COST[ROUNDS], 0), (composition.epsilon_rdp({KIND: ROUNDS + 2}, DELTA), 2)):
        cap = Cap(1.0001 * room, DELTA)
        path = tmp_path / f"{allowed}/first.jsonl"
        run(path, cap, rounds=2)
        with Ledger(path) as ledger:  # after a restart
            cap.continuing(path)
            ledger.before_record = partial(cap.check_again, ledger)
            for _ in range(allowed):
                ledger.record([event(1)])
            with pytest.raises(UserError, match="Another release of a round would bring"):
                ledger.record([event(1)])
            for number in range(2, ROUNDS):
                ledger.record([event(number)])
        assert len(read_ledger(path)[-1].events) == ROUNDS + allowed
        assert spent(path.parent) <= cap.epsilon


def test_no_round_is_repeated_where_ledgers_may_be_missing(tmp_path):
    """A deleted ledger would make room under the cap."""
    cap = Cap(100, DELTA)
    for name in ("first", "second"):
        run(tmp_path / f"{name}.jsonl", cap)
    with Ledger(tmp_path / "second.jsonl") as ledger:
        ledger.before_record = partial(cap.check_again, ledger)
        (tmp_path / "first.jsonl").unlink()
        with pytest.raises(UserError, match=r"first\.jsonl is missing"):
            ledger.record([event(1)])
    with pytest.raises(UserError, match=r"first\.jsonl is missing"):
        run(tmp_path / "third.jsonl", cap)


def test_a_limit_does_not_add_up_what_different_units_cost(tmp_path):
    record(tmp_path / "a.jsonl", unit="record")
    with (
        pytest.raises(UserError, match="protect one unit, found record "),
        Cap(1e6, DELTA).starting(tmp_path / "b.jsonl", DECLARATION),
    ):
        pass


def test_of_a_plan_for_several_nodes_a_hospital_counts_its_own(tmp_path):
    both = replace(DECLARATION, releases=(EVENT, replace(EVENT, node="b", expected=40.0, kind=ALWAYS)))
    all_nodes, first, second = (declared_run("x", replace(both, node=node)) for node in (None, "a", "b"))
    assert total([first], DELTA) == pytest.approx(COST[ROUNDS])
    assert total([all_nodes], DELTA) == total([second], DELTA) > 2 * COST[ROUNDS]


@pytest.mark.timeout(60)
def test_who_is_drawn_at_all_with_probability_delta_or_less_pays_nothing_more():
    assert composition.epsilon({NoisySum(1e-12, 1e-3): 10**9}, DELTA) == 0
    assert composition.epsilon({NoisySum(1e-12, 1e-3, units=10**6): 1000}, 1.001 * DELTA) == 0
    often = {NoisySum(DELTA / 2, 0.1): 3}
    assert composition.epsilon(often, 1.5 * DELTA) == 0 < 1 < composition.epsilon(often, 1.4 * DELTA)


def test_a_run_that_began_under_another_name_of_the_hospital_counts_with_all_its_nodes(tmp_path):
    """The ledgers are of one hospital, but do not say which node of that plan it was."""
    nodes = [replace(EVENT, node="b"), replace(EVENT, node="c", expected=40.0, kind=ALWAYS)]
    other = replace(DECLARATION, releases=nodes)
    with Ledger(tmp_path / "first.jsonl") as ledger:
        ledger.start(other)
    own = replace(DECLARATION, node="a")
    worst = total([declared_run("first", other), declared_run("second", own)], DELTA)
    for cap, allowed in ((0.999 * worst, False), (1.001 * worst, True)):
        with (
            nullcontext() if allowed else pytest.raises(CapError, match="The cap is"),
            Cap(cap, DELTA).starting(tmp_path / "second.jsonl", own),
        ):
            assert allowed
