"""The documentation site: every link leads somewhere, a browser shows its pages, and nothing is fetched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import show

from zetadp.cli.commands import command_line

ROOT = Path(__file__).parents[2]


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    command += ["-d", str(site.with_name("doctrees")), str(docs), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index", "api", "privacy", "results/default/table1"])
def test_a_browser_shows_the_pages_without_an_error(page, site, tmp_path):
    pixels, console = show(site / f"{page}.html", tmp_path)
    assert console == ""
    assert 0.005 < (pixels.mean(axis=2) < 0.5).mean() < 0.5  # text and lines are dark


@pytest.mark.slow
def test_pages_fetch_nothing_from_the_network(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe|source)\b[^>]*\b(?:src|href)="([^"]*)"', page.read_text())
        assert [link for link in fetched if link.startswith(("http:", "https:", "//"))] == [], page


@pytest.mark.slow
def test_the_site_holds_the_help_of_every_command(site):
    page = (site / "commands.html").read_text()
    (commands,) = [action for action in command_line()._actions if action.dest == "==SUPPRESS=="]
    for name in commands.choices:
        assert f"<h2>zetadp {name}" in page


@pytest.mark.slow
def test_the_site_holds_every_key_of_the_configuration(site):
    page = (site / "configuration.html").read_text()
    for key in ("cohort.train_patients", "networks.NAME.training.clip", "runs[].epsilons"):
        assert f">{key}<" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", ["[gone](gone.md)", "[gone](index.md#gone)", "```{eval-rst}\n.. autofunction:: zetadp.gone\n```"]
)
def test_a_link_or_a_name_that_leads_nowhere_stops_the_build(wrong, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "conf.py").write_bytes((ROOT / "docs/conf.py").read_bytes())
    (docs / "index.md").write_text(f"# A page\n\n{wrong}\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode == 1
    assert "gone" in done.stderr
