"""Rules and scripts agree about names, and every script hands its ``main`` to the seam."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from environments.declared import WITH_TASK

import zetadp.base.workflow

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
OF_A_RUN = {"network", "arm", "epsilon", "seed"}


class Rule(NamedTuple):
    """What the text of a rule declares; the formatter keeps one name a line."""

    name: str
    text: str

    def names(self, directive: str) -> list[str]:
        block = re.search(rf"^( +){directive}:\n((?:\1 +.*\n)*)", self.text, flags=re.MULTILINE)
        if block is None:
            return []
        depth = len(block[1]) + 4
        return re.findall(rf"^ {{{depth}}}(\w+)=", block[2], flags=re.MULTILINE)

    @property
    def wildcards(self) -> set[str]:
        outputs = re.search(r" output:\n((?:.*\n)*?) +log:", self.text)[1]
        found = set(re.findall(r"\{\{(\w+)\}\}", outputs))
        return found | (OF_A_RUN if "RUN_WILDCARDS" in outputs else set())


def rules() -> dict[str, Rule]:
    """Return the rules that run a script, by the script's name."""
    found = {}
    for path in sorted((ROOT / "workflow/rules").rglob("*.smk")):
        for text in re.split(r"^ *(?=(?:use )?rule \w+(?::| as .*)$)", path.read_text(), flags=re.MULTILINE)[1:]:
            if "script:" not in text or text.startswith("use "):  # a target, or a variant of another rule
                continue
            name = re.match(r"rule (\w+):", text)[1]
            script = re.search(r'script:\n +"[./]+/scripts/(\w+)\.py"', text)[1]
            assert script not in found, f"two rules run {script}"
            found[script] = Rule(name, text + "\n")
    return found


RULES = rules()


def test_every_script_has_a_rule_of_its_name_and_every_rule_a_script():
    assert {script: rule.name for script, rule in RULES.items()} == {path.stem: path.stem for path in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_rule_and_main_agree(script, monkeypatch):
    seen = []
    monkeypatch.setattr(zetadp.base.workflow, "run", lambda *given: seen.append(given))
    injected = SimpleNamespace()
    module = runpy.run_path(str(script), init_globals={"snakemake": injected}, run_name="__main__")
    # The seam gets this script's main and what Snakemake injected, once.
    assert seen == [(module["main"], injected)]

    rule = RULES[script.stem]
    parameters = inspect.signature(module["main"]).parameters
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters.values())
    given = [name for directive in ("input", "output", "params") for name in rule.names(directive)]
    assert len(given) == len(set(given)), "one name for two things"
    given = set(given) - set(zetadp.base.workflow.TRIGGERS)
    needed = {name for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty}
    assert given <= set(parameters)
    assert needed <= given | rule.wildcards | {"threads", *rule.names("resources")}
    assert re.search(rf'code=code_of\("scripts/{script.name}"(, TASK_CODE)?\),', rule.text)
    assert ("TASK_CODE" in rule.text) == (script.stem in WITH_TASK)
    # What can run on a GPU asks for one, or two such jobs would share it.
    assert ("device" in given) == ("gpu=gpus()" in rule.text)
    assert rule.text.count("conda:") == rule.text.count(" log:") == 1
