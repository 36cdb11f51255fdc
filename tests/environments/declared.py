"""What environment files, rules and imports say: which package is listed where, and which is needed where."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import yaml

from zetadp.base.workflow import code_of

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = sorted(path.stem for path in (ROOT / "envs").glob("*.yaml"))
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py"))

RULES_OF_TASKS = sorted((ROOT / "workflow/rules/tasks").glob("*.smk"))
# Stages that find their task by its name.
WITH_TASK = ("evaluate", "train_federated", "train_model", "write_release")

# Packages of conda-forge that PyPI has under another name, and packages that are imported under another name.
CONDA_TO_PYPI = {"pytorch": "torch", "matplotlib-base": "matplotlib", "python-isal": "isal"}
IMPORTED_AS = {"dp-accounting": "dp_accounting", "pyyaml": "yaml"}
# Calls that need the package which they name.
BY_NAME = {"importlib.import_module", "import_module", "resources.files", "importlib.resources.files"}
# What only Snakemake's own process imports, what comes with pydantic where settings are read, and the library itself.
NOT_OF_STAGES = {"snakemake", "zetadp", "pydantic_core"}


def listed(environment: str) -> dict[str, str]:
    """Return version by PyPI name of the packages in an environment file, Python itself left out."""
    entries = yaml.safe_load((ROOT / f"envs/{environment}.yaml").read_text())["dependencies"]
    pairs = [entry.split("=", 1) for entry in entries]
    return {CONDA_TO_PYPI.get(name, name): version for name, version in pairs if name != "python"}


def requirements(environment: str) -> list[str]:
    """Return what pip installs for an environment file: the same releases, whatever their build."""
    return [f"{name}=={version}.*" for name, version in listed(environment).items()]


def stages() -> dict[str, list[str]]:
    """Return the scripts that run in each environment, as the rules say; for the script of stages, their modules."""
    found: dict[str, list[str]] = {name: [] for name in ENVIRONMENTS}
    for path in [*sorted((ROOT / "workflow/rules").glob("*.smk")), *RULES_OF_TASKS]:
        for text in re.split(r"^ *(?=rule \w+:$)", path.read_text(), flags=re.MULTILINE)[1:]:
            if "script:" not in text:  # a target, which only names files
                continue
            environment = re.search(r'conda:\n +"[./]+/envs/(\w+)\.yaml"', text)[1]
            script = re.search(r'script:\n +"[./]+/scripts/(\w+)\.py"', text)[1]
            found[environment].append(re.search(r'stage="([\w.]+):', text)[1] if script == "stage" else script)
    return found


def imported(script: str) -> set[str]:
    """Return the PyPI names of the packages that a script, or a stage's module, and all that it reaches import."""
    named = [f"zetadp.tasks.{path.stem}" for path in RULES_OF_TASKS] if script in WITH_TASK else []
    if "." in script:
        script, named = "stage", [script]
    files = code_of(f"scripts/{script}.py", *named, root=ROOT)
    modules = {name.split(".")[0] for file in files if file.endswith(".py") for name in imports_of(ROOT / file)}
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
