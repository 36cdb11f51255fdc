"""The undisturbed run of all stages, to which the crash tests of a test process compare theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkouts import RECORDER, Checkout, copy_of_repository, made_once

pytest.register_assert_rewrite("crash.reference")

from crash.reference import Reference  # noqa: E402

# The smallest size that does all that the workflow does: 5 + 4 patients, one run of six rounds.
TINY = """
name: tiny
device: cpu
cohort:
  name: tiny
  train_patients: 5
  test_patients: 4
  simulated: {population: standard, seed: 7, grid: [12, 12, 8], scanners: 2}
task:
  settings:
    slices: 2
    size: 8
    pretraining:
      simulation: {patients: 3, shapes: 3, shards: 1}
      held_out: 1
      network: {widths: [2, 4], convolutions: 1, groups: 2}
      training: {steps: 4, batch: 4, components: [2, 4]}
shards: 1
partition: {nodes: 2, validation_patients: 1}
networks:
  complex: {widths: [2, 4], groups: 2}
arms:
  federated: {expected_patients: 1, rounds: 6}
training: {evaluate_every: 2, learning_rate: 0.01, checkpoint_seconds: 0.0}
audit:
  training: {trials: 50}
runs:
  - {networks: [complex], arms: [federated], epsilons: [8], seeds: [0]}
"""
BY_NO_RUN = [f"resources/tiny/{kind}/shard-00.h5" for kind in ("features", "study")]


def recorded(target: Path) -> Checkout:
    """Run every stage in a copy of the repository, and write down how the scripts were called."""
    checkout = copy_of_repository(target)
    checkout.snakemake("all", *BY_NO_RUN, configfile=checkout.overlay(TINY), PYTHONPATH=RECORDER)
    return checkout


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    return Reference(made_once(tmp_path_factory, "tiny", recorded), tmp_path_factory.mktemp("reference"))
