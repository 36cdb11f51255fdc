"""Checks that must pass, and wrong variants of shipped functions that each of them must catch."""

from pathlib import Path

import pytest

# Checks are helpers, not test modules; this makes their assertions say what was found.
pytest.register_assert_rewrite(*(f"mutants.{path.stem}" for path in Path(__file__).parent.glob("[!_]*.py")))
