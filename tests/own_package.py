"""The packages of docs/tasks.md and docs/mechanisms.md, as a user installs them."""

from __future__ import annotations

import re
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
        """Write the package into a folder, with the metadata that pip writes beside it; return the folder."""
        for file, text in zip(self.files, self.blocks("python"), strict=True):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        metadata = folder / f"{self.name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {self.name}\nVersion: 1.0\n")
        group, name, value = re.search(r'entry-points\."(.+)"\]\n(\w+) = "(.+)"', self.blocks("toml")[0]).groups()
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        return folder


TASK = Package(
    DOCS / "tasks.md", "my_package", ("my_package/__init__.py", "my_package/stages.py", "my_package/rotation.smk")
)
LAW = Package(DOCS / "mechanisms.md", "my_laws", ("my_laws.py",))
