"""The package of docs/tasks.md, as a user installs it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/tasks.md"
FILES = ("__init__.py", "stages.py", "rotation.smk")
"""Files of the package, in the order in which the page shows them."""


def blocks(language: str) -> list[str]:
    """Return the page's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def install(folder: Path) -> Path:
    """Write the package into a folder, with the metadata that pip writes beside it; return the folder."""
    package, metadata = folder / "my_package", folder / "my_package-1.0.dist-info"
    for new in (package, metadata):
        new.mkdir(parents=True)
    for name, text in zip(FILES, blocks("python"), strict=True):
        (package / name).write_text(text)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    name, value = re.search(r'(\w+) = "(.+)"', blocks("toml")[0]).groups()
    (metadata / "entry_points.txt").write_text(f"[zetadp.tasks]\n{name} = {value}\n")
    return folder
