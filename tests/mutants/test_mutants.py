"""Every check passes on the shipped code, and every mutant fails the check that is named for it."""

from __future__ import annotations

import csv
import importlib
from functools import reduce
from pathlib import Path

import pytest

from mutants import (  # noqa: F401  (modules that register mutants and their checks)
    kernels,
    mutants_of_contributions,
    mutants_of_directions,
    mutants_of_hospitals,
    mutants_of_kernels,
    mutants_of_noise,
    mutants_of_records,
    mutants_of_rows,
    mutants_of_sampling,
    mutants_of_sums,
)
from mutants.installing import CHECKS, MUTANTS, installed
from zetadp.nn import weight_gradients

TABLES = Path(__file__).parents[2] / "docs/mutants"


def table(name: str) -> list[list[str]]:
    """Return the cells of a table of docs/mutants, without its head."""
    return list(csv.reader((TABLES / f"{name}.csv").read_text().splitlines()))[1:]


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes_on_the_shipped_code_and_reaches_its_kernels(name: str, tmp_path: Path) -> None:
    with kernels.called() as reached:
        CHECKS[name].run(tmp_path)
    assert reached >= kernels.REACHED.get(name, set())


def test_every_kernel_of_a_convolution_is_known() -> None:
    found = {name for name in vars(weight_gradients) if name.startswith("by_")}
    on_a_cpu = {target.partition(":")[2] for target in kernels.ON_A_CPU}
    assert found == {name for name in on_a_cpu if name.startswith("by_")}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_a_shipped_function_is_killed_by_the_check_named_for_it(name: str, tmp_path: Path) -> None:
    module, _, path = MUTANTS[name].target.partition(":")

    def function() -> object:
        return reduce(getattr, path.split("."), importlib.import_module(module))

    shipped = function()
    assert module.startswith("zetadp.")
    with installed(MUTANTS[name]):
        assert function() is not shipped
        with pytest.raises(AssertionError):
            CHECKS[MUTANTS[name].killer].run(tmp_path)
    assert function() is shipped


def test_all_checks_together_fail_on_correct_code_once_in_a_thousand_runs_at_most() -> None:
    assert 0 < sum(check.false_alarm for check in CHECKS.values()) <= 1e-3


def test_every_check_is_the_named_killer_of_some_mutant() -> None:
    assert {mutation.killer for mutation in MUTANTS.values()} == set(CHECKS)


def test_the_table_lists_exactly_the_checks() -> None:
    listed = {name: alarm for name, _, alarm in table("checks")}
    assert listed == {name: f"{check.false_alarm:g}" for name, check in CHECKS.items()}


def test_the_table_lists_exactly_the_mutants_with_function_and_check() -> None:
    listed = [(name, function, check) for name, _, function, check, _ in table("mutants")]
    expected = [
        (mutation.name, mutation.target.removeprefix("zetadp."), mutation.killer) for mutation in MUTANTS.values()
    ]
    assert sorted(listed) == sorted(expected)


def test_the_table_says_where_every_mutant_comes_from_and_why_it_is_caught() -> None:
    assert all(len(cells) == 5 and all(cells) for cells in table("mutants"))
