"""What every profile has to say, and what is packed together."""

from __future__ import annotations

import re

import pytest
import yaml
from checkouts import ROOT

PROFILES = {path.parent.name: yaml.safe_load(path.read_text()) for path in (ROOT / "profiles").glob("*/profile.yaml")}


def test_packs_are_of_groups_that_rules_have():
    rules = "".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    groups = set(re.findall(r'group:\n +"(\w+)"', rules))
    assert set(PROFILES["slurm"]["group-components"]) == groups


@pytest.mark.parametrize(("noise", "packed"), [("seeded", True), ("os", False)])
def test_trainings_with_noise_of_the_operating_system_are_not_packed(fresh, noise, packed):
    """A pack that is killed is made again as a whole, which would release finished trainings a second time."""
    noised = ("--config", f"privacy={{noise: {noise}}}")
    said = fresh.snakemake("train", "--dry-run", "--workflow-profile", "slurm", *noised)
    # Jobs of a group stand indented below it.
    trainings = re.findall(r"^( *)rule train_model:$", said, flags=re.MULTILINE)
    assert len(trainings) == 7
    assert {bool(indent) for indent in trainings} == {packed}
