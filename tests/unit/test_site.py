"""The documentation site: every link leads somewhere, and its pages fetch nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    command += ["-d", str(site.with_name("doctrees")), str(docs), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_pages_fetch_nothing_from_the_network(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)="([^"]*)"', page.read_text())
        assert [link for link in fetched if link.startswith(("http:", "https:", "//"))] == [], page
