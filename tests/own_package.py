"""The packages of docs/tasks.md and docs/mechanisms.md, as a user installs them."""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[1] / "docs"


class Package(NamedTuple):
    """A package that a page shows: its name, and its files in the order in which the page shows them."""

    page: Path
    name: str
    files: tuple[str, ...]

    def blocks(self, language: str) -> list[str]:
        """Return the page's blocks of a language."""
        return re.findall(rf"^```{language}\n(.*?)^```", self.page.read_text(), re.DOTALL | re.MULTILINE)

    def install(self, folder: Path) -> Path:
        """Copy the installed package into a folder, and return the folder."""
        return Path(shutil.copytree(installed(self), folder, dirs_exist_ok=True))

    def write(self, project: Path) -> None:
        """Write the files of the page."""
        (project / "pyproject.toml").write_text(self.blocks("toml")[0])
        for file, text in zip(self.files, self.blocks("python"), strict=True):
            (project / file).parent.mkdir(exist_ok=True)
            (project / file).write_text(text)


@cache
def installed(package: Package) -> Path:
    """Install a package by pip, once, into a folder that the end of the process removes."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]
    with tempfile.TemporaryDirectory() as project:
        package.write(Path(project))
        done = subprocess.run([*pip, "--target", folder, project], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


TASK = Package(
    DOCS / "tasks.md", "my_package", ("my_package/__init__.py", "my_package/stages.py", "my_package/rotation.smk")
)
LAW = Package(DOCS / "mechanisms.md", "my_laws", ("my_laws.py",))
