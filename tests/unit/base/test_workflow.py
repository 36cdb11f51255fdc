from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints

import pytest
from own_package import TASK

from zetadp.base.logs import NOTICE, PROGRESS
from zetadp.base.workflow import ROOT, code_of, run, typed
from zetadp.training.task import task_of

FILES = {
    "scripts/train.py": "from zetadp.training import train\n\ntrain()\n",
    "src/zetadp/__init__.py": '"""Package."""\n',
    "src/zetadp/nn/__init__.py": '"""Networks."""\n',
    "src/zetadp/training.py": """
        \"\"\"Training.\"\"\"
        import os
        from zetadp.nn import layers
        import zetadp.mechanism


        def train():
            \"\"\"Train.\"\"\"
            from zetadp.late import now
            return layers.width + now  # done
    """,
    "src/zetadp/nn/layers.py": "from zetadp.nn.deep import width\npage = 'templates/page.j2'\n",
    "src/zetadp/nn/templates/page.j2": "<p>{# here #}</p>\n",
    "src/zetadp/nn/templates/other.j2": "<p></p>\n",
    "src/zetadp/nn/deep.py": "from zetadp.training import train\nwidth = 3\n",
    "src/zetadp/mechanism/__init__.py": "clip = 1\n",
    "src/zetadp/late.py": "now = 1\n",
    "src/zetadp/unrelated.py": "x = 1\n",
    "src/zetadp/nn/unrelated.py": "y = 1\n",
}


@pytest.fixture
def repository(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path


def changed(repository: Path, name: str, old: str, new: str) -> bool:
    """Tell whether an edit changes the code of the script."""
    before = code_of("scripts/train.py", root=repository)
    path = repository / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000))
    return code_of("scripts/train.py", root=repository) != before


IN_MEANING = [
    ("scripts/train.py", "train()", "train(2)"),
    ("src/zetadp/training.py", "layers.width", "2 * layers.width"),
    ("src/zetadp/nn/deep.py", "width = 3", "width = 4"),
    ("src/zetadp/mechanism/__init__.py", "clip = 1", "clip = 2"),
    ("src/zetadp/late.py", "now = 1", "now = 1.0"),
    ("src/zetadp/nn/layers.py", "import width", "import width as breadth"),
    ("src/zetadp/nn/templates/page.j2", "here", "there"),
]
IN_WORDS_LAYOUT_TIME_OR_ELSEWHERE = [
    ("src/zetadp/training.py", "# done", "# finished"),
    ("src/zetadp/training.py", '"""Train."""', '"""Train, that is to say learn."""'),
    ("src/zetadp/training.py", '"""Training."""\n', ""),
    ("src/zetadp/training.py", "layers.width + now", "(\n        layers.width\n        + now\n    )"),
    ("src/zetadp/late.py", "now = 1", 'now = 1\n"""The time."""'),
    ("src/zetadp/unrelated.py", "x = 1", "x = 2"),
    ("src/zetadp/nn/templates/other.j2", "<p>", "<q>"),
    ("src/zetadp/late.py", "now", "now"),
]


@pytest.mark.parametrize("edits", [IN_MEANING, IN_WORDS_LAYOUT_TIME_OR_ELSEWHERE], ids=["meaning", "words"])
def test_code_changes_exactly_when_something_reachable_changes_in_meaning(repository, edits):
    assert [changed(repository, *edit) for edit in edits] == [edits is IN_MEANING] * len(edits)


def test_the_code_of_training_is_all_that_a_guarantee_rests_on():
    training = code_of("scripts/train_model.py")
    for module in ("mechanism/clipping", "mechanism/release", "account/ledger", "nn/stacked", "training/records"):
        assert f"src/zetadp/{module}.py" in training


class Named(dict):
    """Named items, as Snakemake passes them."""


def job(folder: Path, **changes: object) -> SimpleNamespace:
    content = {
        "input": Named(images=[str(folder / "a.h5"), str(folder / "b.h5")], table=str(folder / "t.csv")),
        "output": Named(model=str(folder / "model.bin")),
        "params": Named(settings={"rounds": 3}, code={"scripts/x.py": "abc"}),
        "wildcards": Named(seed="7", arm="central"),
        "resources": Named(gpu=1),
        "threads": 3,
        "log": [str(folder / "logs" / "x.log")],
        "rule": "train",
    }
    return SimpleNamespace(**(content | changes))


@contextmanager
def untouched_process():
    """Give the block a process without log handlers, and undo what it sets up."""
    root = logging.getLogger()
    kept = root.handlers[:], root.level, sys.excepthook
    root.handlers[:] = []
    with warnings.catch_warnings():
        try:
            yield
        finally:
            for handler in root.handlers:
                handler.close()
            logging.captureWarnings(capture=False)
            root.handlers[:], root.level, sys.excepthook = kept


def call(main, snakemake) -> str:
    """Run a job and return its log."""
    with untouched_process():
        run(main, snakemake)
    return Path(snakemake.log[0]).read_text()


def test_the_log_holds_all_and_the_terminal_what_a_user_waits_for(tmp_path, capfd):
    def main(*, images, table, model, settings) -> None:
        logging.getLogger("zetadp.training").info("read a file")
        logging.getLogger(PROGRESS).info("round %d", 5)
        warnings.warn("odd number", UserWarning, stacklevel=1)

    log = call(main, job(tmp_path))
    assert "INFO round 5" in log
    assert "INFO read a file" in log
    assert "odd number" in log
    shown = capfd.readouterr().err
    assert "INFO round 5" in shown
    assert "odd number" in shown
    assert "read a file" not in shown


def test_resources_that_a_rule_writes_as_json_arrive_as_values(tmp_path):
    def main(*, cap, series, gpu, **_) -> None:
        given.append((cap, series, gpu))

    given: list[object] = []
    call(main, job(tmp_path, resources=Named(gpu=1, cap="null", series='{"name": "abc", "runs": 27}', mem_mb=8000)))
    assert given == [(None, {"name": "abc", "runs": 27}, 1)]


@dataclass(frozen=True)
class Settings:
    rounds: int


@dataclass(frozen=True)
class Nested:
    folder: Path
    settings: Settings | None = None


@dataclass(frozen=True)
class Limited:
    total: float

    @classmethod
    def from_json(cls, content) -> Limited:
        return cls(float(content["epsilon"]))


def test_a_dataclass_arrives_as_itself_from_the_json_of_a_rule(tmp_path):
    def main(*, settings: Settings, cap: Limited | None, series: Limited | None, several: list[Settings], **_) -> None:
        given.append((settings, cap, series, several))

    given: list[object] = []
    main.__annotations__ = get_type_hints(main, localns={"Limited": Limited})
    params = Named(settings={"rounds": 3}, several=[{"rounds": 1}, {"rounds": 2}])
    resources = Named(cap='{"epsilon": "8"}', series="null")
    call(main, job(tmp_path, params=params, resources=resources))
    assert given == [(Settings(3), Limited(8.0), None, [Settings(1), Settings(2)])]


def test_fields_of_a_dataclass_arrive_as_their_types_say():
    def main(*, first: Nested, second: Nested, where: Path) -> None:
        raise AssertionError

    main.__annotations__ = get_type_hints(main)
    given = {"first": {"folder": "a/b", "settings": {"rounds": 3}}, "second": {"folder": "c", "settings": None}}
    expected = {"first": Nested(Path("a/b"), Settings(3)), "second": Nested(Path("c")), "where": Path("d")}
    assert typed(main, given | {"where": "d"}) == expected


def test_an_error_of_an_installed_package_ends_a_job_with_its_line(tmp_path, monkeypatch, capfd):
    package = TASK.install(tmp_path / "installed")
    file = package / "my_package/__init__.py"
    broken = "class OwnError(Exception):\n    pass\n\n\ndef broken(self, predictions):\n    raise OwnError('no room')\n"
    file.write_text(file.read_text() + f"\n\n{broken}\n\nRotation.summarise = broken\n")
    monkeypatch.syspath_prepend(package)

    def main(**_) -> None:
        task_of({"name": "rotation"}).summarise(None)

    (tmp_path / "logs").mkdir()
    with pytest.raises(SystemExit) as end:
        call(main, job(tmp_path))
    sys.modules.pop("my_package")
    assert end.value.code == 1
    terminal = capfd.readouterr().err
    assert "in the package my_package, found OwnError: no room (line" in terminal
    assert f"{file}, in broken: raise OwnError('no room'))" in terminal
    assert "Traceback" not in terminal
    assert "Traceback" in (tmp_path / "logs/x.log").read_text()


def test_an_error_of_the_library_itself_stays_a_traceback(tmp_path):
    def main(**_) -> None:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        call(main, job(tmp_path))


def test_jobs_of_one_workflow_share_the_pace_of_their_lines(tmp_path, capfd, monkeypatch):
    def main(*, images, table, model, settings) -> None:
        for number in range(200):
            logging.getLogger(PROGRESS).info("trial %d", number)
        logging.getLogger("zetadp.cost").log(NOTICE, "epsilon 8 for each patient")
        logging.getLogger("zetadp.training").warning("odd number")

    (tmp_path / ".snakemake").mkdir()
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert call(main, job(tmp_path)).count("INFO trial") == 200
    shown = capfd.readouterr().err
    assert shown.count("trial") == 1
    assert shown.count("epsilon 8 for each patient") == shown.count("odd number") == 2


SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints
sys.path.insert(0, {source!r})
from zetadp.base.validation import UserError
from zetadp.base.workflow import run

def main(*, kind):
    raise {{"user": UserError("the message"), "ours": ValueError("our fault"), "memory": MemoryError()}}[kind]

run(main, SimpleNamespace(input={{}}, output={{}}, params={{"kind": {kind!r}}}, wildcards={{}}, resources={{}},
                          threads=1, log=[{log!r}], rule="x"))
"""


ENDS = {"user": "the message", "ours": "our fault", "memory": "Out of memory in rule x: give it more (mem_mb)"}


@pytest.mark.parametrize("kind", ENDS)
def test_a_job_ends_with_exit_code_1_and_only_our_faults_leave_a_traceback_in_the_log(tmp_path, kind):
    log = tmp_path / "x.log"
    code = SCRIPT.format(source=str(ROOT / "src"), kind=kind, log=str(log))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    for text in (done.stderr, log.read_text()):
        assert ENDS[kind] in text
        assert ("Traceback" in text) == (kind == "ours")


def test_the_seam_imports_nothing_but_the_standard_library():
    heavy = ("numpy", "torch", "pandas", "snakemake")
    code = f"import sys; import zetadp.base.workflow; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
