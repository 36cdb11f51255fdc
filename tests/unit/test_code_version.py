"""Results name the code that made them."""

from __future__ import annotations

import subprocess
from importlib import metadata

import pytest
import torch

from zetadp.report.provenance import code_version, environment

INSTALLED = f"zetadp {metadata.version('zetadp')}"


def git(folder, *arguments: str) -> str:
    settings = ("-c", "user.name=tester", "-c", "user.email=tester@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", folder, *settings, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """Return a repository of one commit with one file."""
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / "code.py").write_text("FIRST = 1\n")
    git(root, "add", "code.py")
    git(root, "commit", "--quiet", "--message", "First")
    return root


def test_a_checkout_is_named_by_its_commit_and_marked_where_it_was_changed(checkout):
    commit = git(checkout, "rev-parse", "--short", "HEAD")
    assert code_version(checkout) == commit
    (checkout / "results.csv").write_text("what a run writes is no change of the code")
    assert code_version(checkout) == commit
    (checkout / "code.py").write_text("SECOND = 2\n")
    assert code_version(checkout) == f"{commit}-dirty"


def test_a_second_work_tree_is_a_checkout_of_its_own(checkout, tmp_path):
    git(checkout, "worktree", "add", "--quiet", str(tmp_path / "second"))
    (checkout / "code.py").write_text("CHANGED = 1\n")
    assert code_version(tmp_path / "second") == code_version(checkout).removesuffix("-dirty")


def test_a_package_within_another_projects_repository_does_not_take_its_commit(checkout):
    within = checkout / ".venv/lib/python3"
    within.mkdir(parents=True)
    assert code_version(within) == INSTALLED


def test_without_git_the_installed_version_is_named(checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_version(checkout) == INSTALLED


def test_the_environment_holds_code_machine_and_software():
    found = environment(torch.device("cpu"))
    assert found["commit"] == code_version()
    assert found["torch"] == torch.__version__
    assert found["cores"] >= 1
