"""The documentation: generated pages are current, every link of the site leads somewhere, and pages fetch nothing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def reference():
    """The program that writes the generated pages."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current(reference):
    stale = [path.name for path, content in reference.pages().items() if path.read_text() != content]
    assert stale == [], "run: make reference"


def test_generated_pages_show_angle_brackets_and_options():
    configuration, commands = ((ROOT / "docs" / name).read_text() for name in ("configuration.md", "commands.md"))
    assert r"results go to results/\<name>." in configuration
    assert re.search(r"^\| `simulated.seed` \| integer ≥ 0 \| `2026` \| ", configuration, re.MULTILINE)
    prose = re.sub(r"```.*?```|`[^`]*`", "", configuration + commands, flags=re.DOTALL)
    assert re.findall(r"(?<!\\)<(?!!--)\w+|--\w+", prose) == []


@pytest.mark.parametrize("page", ["configuration.md", "commands.md"])
def test_generated_tables_fit_a_window(page):
    """In a window of 1,300 pixels, the column of text has 742, which are about 90 letters beside the edges of cells."""
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    for table in tables:
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines()]
        widest = [max(len(word) for cell in column for word in cell.split()) for column in zip(*rows, strict=True)]
        assert sum(widest) <= 90, (widest, table)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_its_pages_fetch_nothing(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    command += ["-d", str(tmp_path / "doctrees"), str(ROOT / "docs"), str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)="([^"]*)"', page.read_text())
        assert [link for link in fetched if link.startswith(("http:", "https:", "//"))] == [], page
