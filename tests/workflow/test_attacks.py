"""Attacks on messages, switched on in the smoke scenario: made once, and shown on the pages of what they attack."""

from __future__ import annotations

import pytest
from checkouts import SMOKE

ATTACKS = """audit:
  inversion:
    messages: 2
    steps: 1
    kinds:
      - network: complex
        epsilons: [inf, 8]
  candidates:
    networks: [pretrained]
    patients: 12
    candidates: [10]
    epsilons: [8]
"""
ON_PAGES = {"complex": "Images rebuilt from one message of", "pretrained": "The right one of several candidates"}


@pytest.mark.slow
def test_attacks_are_made_and_shown_by_the_runs_that_they_attack(copy):
    scenario = copy.overlay((copy.root / SMOKE).read_text().replace("audit:\n", ATTACKS, 1))
    assert copy.would_run(configfile=scenario) == {"invert_gradients", "name_candidates", "write_risk"}
    copy.snakemake(configfile=scenario)
    assert copy.would_run(configfile=scenario) == set()
    folder = copy.root / "results/smoke"
    for name in ("inversion", "candidates"):
        assert {path.suffix for path in (folder / "audit").glob(f"{name}.*")} == {".csv", ".md", ".svg"}
    for network in ("complex", "pretrained", "linear"):
        for page in (folder / f"runs/{network}/federated").glob("*/*/risk.html"):
            text = page.read_text()
            assert [words in text for words in ON_PAGES.values()] == [name == network for name in ON_PAGES]
    copy.snakemake("--report", "report.html", configfile=scenario)
    report = (copy.root / "report.html").read_text()
    assert "inversion.svg" in report
    assert "candidates.svg" in report
