"""Connect scripts to Snakemake: arguments, logs, errors, and the hash of code that decides whether a rule runs again.

No other module knows Snakemake. Scripts import this one first, so it needs nothing outside the standard library.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from zetadp.base.logs import NOTICE, PROGRESS, Pace, Paced, PlainLines
from zetadp.base.usercode import UserCodeError, package_code
from zetadp.base.validation import UserError

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parents[1]
_FILE = re.compile(r"(\w[\w-]*/)*\w[\w.-]*\.\w+", re.ASCII)
PACE_FILE = Path(".snakemake/last_line")
"""File with the time of the last line of progress, of Snakemake or of a job, in their working folder."""
TRIGGERS = ("code", "brought", "stage")
"""Parameters that no script takes: code and a user's files make a job run again, and a stage names its function."""


def run(
    main: Callable[..., None],
    snakemake: Any = None,  # noqa: ANN401  (injected by Snakemake)
    *,
    unread: Collection[str] = (),
) -> None:
    """Call a script's ``main`` with the declarations of its rule.

    The names of inputs, outputs and params are the keyword arguments of ``main``. Wildcards, resources and ``threads``
    are passed if ``main`` has arguments of these names; a resource that is a text is JSON. Paths become `pathlib.Path`,
    several files a list of them. An argument whose type is a dataclass, or a list of them, is made from the JSON object
    that the rule names. Names in ``unread`` are not passed: a rule declares them for the order of jobs, or to make a
    job run again, and ``main`` finds such files by itself, in the folder of a run. Everything that is logged goes to
    the rule's log file. The terminal shows warnings, errors and notices, and at most one line on the progress of long
    stages in `PACE_SECONDS` (the logger `PROGRESS`). A `UserError` ends the job with its message and without a
    traceback, and so does an error of a package that brings a task or a law of noise. Snakemake puts its object among
    the globals of the script that defines ``main``.
    """
    snakemake = snakemake or main.__globals__["snakemake"]
    _open_log(Path(snakemake.log[0]))
    parameters = inspect.signature(main).parameters
    arguments: dict[str, Any] = {}
    for files in (snakemake.input, snakemake.output):
        for name, value in files.items():
            arguments[name] = Path(value) if isinstance(value, str) else [Path(v) for v in value]
    arguments |= {name: value for name, value in snakemake.params.items() if name not in TRIGGERS}
    arguments = {name: value for name, value in arguments.items() if name not in unread}
    arguments |= {name: value for name, value in snakemake.wildcards.items() if name in parameters}
    for name, value in snakemake.resources.items():
        if name in parameters:
            arguments[name] = json.loads(value) if isinstance(value, str) else value
    if "threads" in parameters:
        arguments["threads"] = snakemake.threads
    logging.getLogger("zetadp").info("%s, with the library in %s", snakemake.rule, PACKAGE)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(snakemake.threads)
    try:
        with package_code():
            main(**typed(main, arguments))
    except MemoryError:
        logging.getLogger("zetadp").error(
            "Out of memory in rule %s: give it more (mem_mb) or fewer jobs at once.", snakemake.rule
        )
        sys.exit(1)
    except UserError as error:
        logging.getLogger("zetadp").error("%s", error)
        if isinstance(error, UserCodeError):  # for the author of the code
            logging.getLogger("zetadp").info("The whole traceback:", exc_info=error)
        sys.exit(1)


def typed(main: Callable[..., None], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as the types that ``main`` declares: paths, and dataclasses from their JSON objects."""
    kinds = {name: parameter.annotation for name, parameter in inspect.signature(main).parameters.items()}
    return {name: _typed(kinds.get(name), value) for name, value in arguments.items()}


def _typed(kind: Any, value: Any) -> Any:  # noqa: ANN401  (any type, any JSON)
    """Return a value as a type: a path, a dataclass with its fields, or a list of them, from its JSON."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    if get_origin(kind) is list and isinstance(value, list):
        return [_typed(get_args(kind)[0], item) for item in value]
    dataclass_type = next(
        (part for part in (kind, *get_args(kind)) if isinstance(part, type) and is_dataclass(part)), None
    )
    if dataclass_type is None or not isinstance(value, dict):
        return value
    if hasattr(dataclass_type, "from_json"):
        return dataclass_type.from_json(value)
    kinds = get_type_hints(dataclass_type)
    return dataclass_type(**{name: _typed(kinds.get(name), field) for name, field in value.items()})


def find_stage(name: str) -> Callable[..., None]:
    """Return a function of the library by its name, such as ``zetadp.phantom.cohort:write_shard``."""
    module, _, function = name.partition(":")
    stage: Callable[..., None] = attrgetter(function)(import_module(module))
    return stage


class _LogFile(logging.FileHandler):
    """A log file that ignores a full disk: the terminal shows the important lines."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _open_log(path: Path) -> None:
    """Send log records and warnings to the rule's log file, and those that a user waits for to the terminal."""
    terminal = logging.StreamHandler()
    terminal.addFilter(lambda record: record.levelno >= NOTICE or record.name.startswith(PROGRESS))
    terminal.addFilter(Paced(Pace(shared=PACE_FILE if PACE_FILE.parent.is_dir() else None)))
    handlers: list[logging.Handler] = [terminal]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(_LogFile(path, mode="w", encoding="utf-8"))
    except OSError as error:
        sys.stderr.write(f"Cannot write the log {path}: {error.strerror or error}. It goes to the terminal only.\n")
    for handler in handlers:
        handler.setFormatter(PlainLines("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=handlers)
    logging.captureWarnings(capture=True)
    warnings.simplefilter("default")
    previous = sys.excepthook

    def log_uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:  # noqa: ANN401  (a traceback)
        if not issubclass(kind, KeyboardInterrupt):
            logging.getLogger("zetadp").critical("uncaught error", exc_info=(kind, error, trace))
        else:
            previous(kind, error, trace)

    sys.excepthook = log_uncaught


def code_of(script: str, *modules: str, root: Path = ROOT) -> dict[str, str]:
    """Return a hash of a script and of every module that it imports, directly or not.

    Modules of this package, of ``papers`` and of the packages of ``modules`` count, together with files that they name
    in their own folder, such as templates.

    Snakemake detects changes of a script by its modification time, and never looks at imported modules. As a parameter
    of the rule, these hashes make a job run again exactly when the meaning of its code changes. Comments, docstrings,
    formatting, a fresh checkout and unrelated modules change nothing.

    Parameters
    ----------
    script
        Path of the script, relative to ``root``.
    modules
        Modules that the script finds by name, such as its task. They may be of any package that can be imported.
    root
        The repository.

    Returns
    -------
    Mapping of file to the first 12 digits of its hash. Files of the repository are relative to ``root``, others to the
    folder of their package.

    Raises
    ------
    UserError
        If one of the modules is not installed.
    """
    packages = {package.name: package for package in (root / "src" / PACKAGE.name, root / "papers")}
    for module in modules:
        name = module.partition(".")[0]
        packages[name] = packages.get(name) or _installed(name)
    hashes: dict[Path, str] = {}
    searched = tuple(packages.values())
    todo = [root / script, *(file for name in modules for file in _files(name, searched))]
    while todo:
        file = todo.pop()
        if file not in hashes:
            hashes[file], imported = _meaning(file, searched, file.stat().st_mtime_ns)
            todo += imported
    roots = (root, *(package.parent for package in searched))
    names = {file: next(file.relative_to(above) for above in roots if file.is_relative_to(above)) for file in hashes}
    return {names[file].as_posix(): hashes[file] for file in sorted(hashes)}


def _installed(name: str) -> Path:
    """Return the folder of an installed package, or the path of an installed module without its suffix."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise UserError(f"Expected the installed package {name}, found none. Install it where Snakemake runs.")
    file = Path(spec.origin)
    return file.parent if spec.submodule_search_locations else file.with_suffix("")


@cache
def _meaning(file: Path, packages: tuple[Path, ...], _changed: int) -> tuple[str, tuple[Path, ...]]:
    """Return the hash of a module's syntax tree without docstrings, and the files that it imports or names.

    The modification time is a parameter for the cache only: many rules reach the same modules. Every string that is a
    statement counts as a docstring, also the description below a constant.
    """
    if file.suffix != ".py":
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12], ()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [statement for statement in node.body if not _is_text(statement)]
    reached = (*_first_party(file, nodes, packages), *_resource_files(file, nodes))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12], reached


def _is_text(statement: ast.stmt) -> bool:
    """Return whether a statement is nothing but a string."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _first_party(file: Path, nodes: Iterable[ast.AST], packages: tuple[Path, ...]) -> Iterable[Path]:
    """Yield the files of packages that a module imports, at its top or inside functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*_above(file, node.level, packages), *([node.module] if node.module else [])]
            # `from package import module` and `from package.module import name` look alike: try both.
            names = [".".join(base), *(".".join([*base, alias.name]) for alias in node.names)]
        else:
            continue
        for name in names:
            yield from _files(name, packages)


def _above(file: Path, level: int, packages: tuple[Path, ...]) -> tuple[str, ...]:
    """Return the names of the package from which a module imports with a number of dots."""
    if not level:
        return ()
    folder = file.parents[level - 1]
    above = next((package.parent for package in packages if folder.is_relative_to(package)), folder)
    return folder.relative_to(above).parts


def _resource_files(module: Path, nodes: Iterable[ast.AST]) -> Iterable[Path]:
    """Yield the files in a module's folder and below it that its strings name, except modules and rules."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _FILE.fullmatch(node.value):
            path = module.parent / node.value
            if path.suffix not in {".py", ".smk"} and path.is_file():
                yield path


def _files(name: str, packages: tuple[Path, ...]) -> Iterable[Path]:
    """Yield the file of a module of one of the packages; nothing for others."""
    first, *rest = name.split(".")
    for package in packages:
        path = package.joinpath(*rest)
        if first == package.name:
            yield from [file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()][:1]
