"""Rules and scripts agree about names, and every script hands its ``main`` to the seam."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from environments.declared import RULES, WITH_LAW, WITH_TASK, Rule

import zetadp.base.workflow
from zetadp.base.workflow import TRIGGERS

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))


OWN = {rule.name: rule for rule in RULES.values() if rule.script != "stage"}


def test_every_script_has_a_rule_of_its_name_and_every_rule_a_script_or_a_stage():
    assert sorted(rule.script for rule in OWN.values()) == sorted(OWN)
    assert sorted([*OWN, "stage"]) == [path.stem for path in SCRIPTS]
    assert all(bool(rule.stage) == (rule.script == "stage") for rule in RULES.values())


def read_in(main: Callable[..., None]) -> set[str]:
    """Return the names that a function reads."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(main)))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def agree(rule: Rule, main: Callable[..., None], code: str, unread: Sequence[str] = ()) -> None:
    """Check that a rule gives a function what it takes, and runs again when its code changes.

    ``unread`` are the names of the rule that order jobs only. Every other one is read.
    """
    parameters = inspect.signature(main).parameters
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())
    given = [name for directive in ("input", "output", "params") for name in rule.names(directive)]
    assert len(given) == len(set(given)), "one name for two things"
    assert set(unread) <= set(given)
    given = set(given) - {*TRIGGERS, *unread}
    needed = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    assert given <= set(parameters) <= read_in(main)
    assert needed <= given | rule.wildcards | {"threads", *rule.names("resources")}
    assert re.search(rf"code=(lambda run: )?code_of\(\s*{code}\s*\),", rule.text)
    # What can run on a GPU asks for one, or two such jobs would share it.
    assert ("device" in given) == ("gpu=gpus()" in rule.text)
    assert rule.text.count("conda:") == rule.text.count(" log:") == 1


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.stem != "stage"], ids=lambda path: path.stem)
def test_rule_and_main_agree(script, monkeypatch):
    seen = []
    monkeypatch.setattr(zetadp.base.workflow, "run", lambda *given, unread=(): seen.append((*given, unread)))
    injected = SimpleNamespace()
    module = runpy.run_path(str(script), init_globals={"snakemake": injected}, run_name="__main__")
    # The seam gets this script's main and what Snakemake injected, once.
    [(main, unread)] = seen
    assert main is module["main"]
    assert main.__globals__["snakemake"] is injected
    rule = OWN[script.stem]
    agree(rule, main, rf'"scripts/{script.name}"(, TASK_CODE)?(, \*\w*(?i:LAWS?_CODE)(\(.*\))?)?', unread)
    assert ("TASK_CODE" in rule.text) == (script.stem in WITH_TASK)
    assert bool(re.search("laws?_code", rule.text, re.IGNORECASE)) == (script.stem in WITH_LAW)


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.stage], ids=lambda rule: rule.name)
def test_rule_and_stage_agree(rule, monkeypatch):
    seen = []
    monkeypatch.setattr(zetadp.base.workflow, "run", lambda *given: seen.append(given))
    injected = SimpleNamespace(params=SimpleNamespace(stage=rule.stage))
    runpy.run_path(str(ROOT / "scripts/stage.py"), init_globals={"snakemake": injected}, run_name="__main__")
    [(main, given)] = seen
    assert given is injected
    agree(rule, main, rf'\s*"scripts/stage.py", "{re.escape(rule.stage.partition(":")[0])}",?\s*')
