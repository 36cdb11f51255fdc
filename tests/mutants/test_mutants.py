"""Every check passes on the shipped code, and every mutant fails the check that is named for it."""

from __future__ import annotations

import csv
import importlib
from functools import reduce
from pathlib import Path

import pytest

from mutants.installing import CHECKS, MUTANTS, installed
from mutants.of_contributions import WEIGHTS
from zetadp.nn import weight_gradients

TABLES = Path(__file__).parents[2] / "docs/mutants"
for file in sorted(Path(__file__).parent.glob("of_*.py")):
    importlib.import_module(f"mutants.{file.stem}")  # registers mutants and their checks


def table(name: str) -> list[tuple[str, ...]]:
    """Return the rows of a table of docs/mutants, without its head; no cell is empty."""
    _, *rows = csv.reader((TABLES / f"{name}.csv").read_text().splitlines())
    assert all(all(cells) for cells in rows)
    return sorted(tuple(cells) for cells in rows)


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_passes_on_the_shipped_code(name, tmp_path):
    CHECKS[name].run(tmp_path)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_a_shipped_function_is_killed_by_the_check_named_for_it(name, tmp_path):
    module, _, path = MUTANTS[name].target.partition(":")

    def function() -> object:
        return reduce(getattr, path.split("."), importlib.import_module(module))

    shipped = function()
    assert module.startswith(("zetadp.", "papers."))
    with installed(MUTANTS[name]):
        assert function() is not shipped
        with pytest.raises(AssertionError):
            CHECKS[MUTANTS[name].killer].run(tmp_path)
    assert function() is shipped


def test_every_kernel_of_a_convolution_has_a_mutant():
    kernels = {f"{WEIGHTS}:{name}" for name in vars(weight_gradients) if name.startswith("by_")}
    kernels.remove(f"{WEIGHTS}:by_unfolding")  # on GPUs alone: test_weight_gradients compares it with the others
    assert kernels <= {mutation.target for mutation in MUTANTS.values()}


def test_every_check_kills_and_all_together_fail_on_correct_code_once_in_a_thousand_runs_at_most():
    assert {mutation.killer for mutation in MUTANTS.values()} == set(CHECKS)
    assert 0 < sum(check.false_alarm for check in CHECKS.values()) <= 1e-3


def test_the_tables_list_exactly_the_checks_and_the_mutants():
    checks = [(name, alarm) for name, _, alarm in table("checks")]
    assert checks == sorted((name, f"{check.false_alarm:g}") for name, check in CHECKS.items())
    mutants = [(name, function, check) for name, _, function, check, _ in table("mutants")]
    assert mutants == sorted((name, m.target.removeprefix("zetadp."), m.killer) for name, m in MUTANTS.items())
