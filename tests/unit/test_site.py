"""The documentation site: every link leads somewhere, and its pages fetch nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
