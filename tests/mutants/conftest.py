from __future__ import annotations

import pytest

# Checks are helpers, not test modules; this makes their assertions say what was found.
pytest.register_assert_rewrite(
    "mutants.checks_of_audit",
    "mutants.checks_of_contributions",
    "mutants.checks_of_hospitals",
    "mutants.checks_of_noise",
    "mutants.checks_of_records",
    "mutants.checks_of_sampling",
    "mutants.checks_of_sums",
    "mutants.hospitals",
)
