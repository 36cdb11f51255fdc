"""What environment files, rules and imports say: which package is listed where, and which is needed where."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

import yaml

from zetadp.accounting.laws import installed_laws, modules_of
from zetadp.base.workflow import code_of
from zetadp.training.task import module_of

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = {path.stem: path for path in (*ROOT.glob("envs/*.yaml"), *ROOT.glob("papers/*/envs/*.yaml"))}
OF_A_RUN = {"network", "arm", "epsilon", "seed"}

RULES_OF_PAPERS = sorted(ROOT.glob("papers/*/rules/*.smk"))
RULES_OF_TASKS = [*sorted((ROOT / "workflow/rules/tasks").glob("*.smk")), *RULES_OF_PAPERS]
# Stages that find their task by its name.
WITH_TASK = ("evaluate", "rehearse", "train_federated", "train_model", "write_release")
# Stages that find laws of noise by their names, in plans or in ledgers.
WITH_LAW = ("account_total", "evaluate", "rehearse", "train_federated", "train_model", "write_risk")

# Packages of conda-forge that PyPI has under another name, and packages that are imported under another name.
CONDA_TO_PYPI = {"pytorch": "torch", "matplotlib-base": "matplotlib", "python-isal": "isal"}
IMPORTED_AS = {"dp-accounting": "dp_accounting", "pyyaml": "yaml"}
# Calls that need the package which they name.
BY_NAME = {"importlib.import_module", "import_module", "resources.files", "importlib.resources.files"}
# What only Snakemake's own process imports, what comes with pydantic where settings are read, and the library itself.
NOT_OF_STAGES = {"snakemake", "zetadp", "papers", "pydantic_core"}


class Rule(NamedTuple):
    """What the text of a rule declares; the formatter keeps one name a line."""

    name: str
    text: str
    file: Path

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
        return found | (OF_A_RUN if re.search(r"\bRUN\.", outputs) else set())

    @property
    def script(self) -> str:
        return re.search(r'script:\n +"[./]+/scripts/(\w+)\.py"', self.text)[1]

    @property
    def environment(self) -> str:
        return re.search(r'conda:\n +"[./]+/envs/(\w+)\.yaml"', self.text)[1]

    @property
    def stage(self) -> str:
        """The function of the library that the rule runs, as its parameter names it."""
        found = re.search(r'stage="([\w.]+:[\w.]+)"', self.text)
        return found[1] if found else ""

    @property
    def reached(self) -> dict[str, str]:
        """The files of the code that the rule runs."""
        if self.stage:
            return code_of("scripts/stage.py", self.stage.partition(":")[0])
        named = [module_of(path.stem) for path in RULES_OF_TASKS] if self.name in WITH_TASK else []
        named += modules_of(installed_laws()) if self.name in WITH_LAW else []
        return code_of(f"scripts/{self.script}.py", *named)


def rules() -> dict[str, Rule]:
    """Return the rules that run a script, by their names."""
    found = {}
    for path in [*sorted((ROOT / "workflow/rules").rglob("*.smk")), *RULES_OF_PAPERS]:
        for text in re.split(r"^ *(?=(?:use )?rule \w+(?::| as .*)$)", path.read_text(), flags=re.MULTILINE)[1:]:
            if "script:" in text and not text.startswith("use "):  # no target, and no variant of another rule
                name = re.match(r"rule (\w+):", text)[1]
                found[name] = Rule(name, text + "\n", path)
    return found


RULES = rules()
OF_OTHER_TASKS = {
    *(rule.name for rule in RULES.values() if rule.file in RULES_OF_PAPERS),
    "write_release",  # of runs that release rows
    *("invert_gradients", "name_candidates"),  # attacks that are off by default
}
"""Rules of other tasks than that of the smoke scenario, whose runs have none of them."""


def listed(environment: str) -> dict[str, str]:
    """Return version by PyPI name of the packages in an environment file, Python itself left out."""
    entries = yaml.safe_load(ENVIRONMENTS[environment].read_text())["dependencies"]
    pairs = [entry.split("=", 1) for entry in entries]
    return {CONDA_TO_PYPI.get(name, name): version for name, version in pairs if name != "python"}


def requirements(environment: str) -> list[str]:
    """Return what pip installs for an environment file: the same releases, whatever their build."""
    return [f"{name}=={version}.*" for name, version in listed(environment).items()]


def imported(rule: Rule) -> set[str]:
    """Return the PyPI names of the packages that the code of a rule, and all that it reaches, imports."""
    modules = {name.split(".")[0] for file in rule.reached if file.endswith(".py") for name in imports_of(ROOT / file)}
    to_pypi = {module: name for name, module in IMPORTED_AS.items()}
    return {to_pypi.get(name, name) for name in modules - sys.stdlib_module_names - NOT_OF_STAGES}


def imports_of(file: Path) -> set[str]:
    """Return the modules that a file imports when it runs: not those under ``if TYPE_CHECKING``."""
    found = set()
    todo: list[ast.AST] = [ast.parse(file.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
        elif (
            isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME and isinstance(node.args[0], ast.Constant)
        ):
            found.add(node.args[0].value)
        todo.extend(ast.iter_child_nodes(node))
    return found
