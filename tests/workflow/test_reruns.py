"""A job runs again exactly when the content that it depends on changes."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil

from own_package import LAW

from zetadp.account.ledger import Ledger

AFTER_TRAINING = {"evaluate", "account_total", "make_tables", "make_figures", "write_report", "write_risk"}
COHORT = {"simulate_patients", "assemble_cohort"}
KSPACE = {"slice_volumes", "make_kspace", "whiten"}


def test_nothing_runs_again_for_words_for_code_outside_the_workflow_or_because_files_are_new(copy):
    """After a fresh clone every source file has the time of the checkout."""
    for name in ("src/zetadp/mri/slicing.py", "src/zetadp/training/loop.py", "scripts/slice_volumes.py"):
        text = (copy.root / name).read_text()
        reworded = re.sub(r'"""(?=[A-Z])', '"""Newly worded: ', text).replace(
            "\nimport ", "\n# Needed below.\n\nimport "
        )
        assert reworded.count("Newly") >= 2
        (copy.root / name).write_text(reworded)
    copy.edit("workflow/rules/cohort.smk", "mem_mb=2000", "mem_mb=2500")
    copy.add("src/zetadp/mri/convert.py")
    copy.add("src/zetadp/cli/commands.py")
    for name in copy.files():
        os.utime(copy.root / name)
    assert copy.would_run() == set()


def test_a_change_in_a_module_reaches_the_rules_that_import_it_indirectly(copy):
    copy.add("src/zetadp/mri/slicing.py")
    rules = copy.would_run()
    # The index looks at every volume, as the slices do, so it is made again, and what follows from it.
    assert rules >= KSPACE | AFTER_TRAINING | {"index_cohort", "train_model"}
    assert not rules & (COHORT | {"calibrate"})


def test_a_change_in_the_figures_draws_them_again_and_no_more(copy):
    copy.add("src/zetadp/report/figures.py")
    assert copy.would_run() == {"make_figures", "write_report"}
    copy.add("src/zetadp/report/figurestyle.py")
    assert copy.would_run() == {"make_figures", "draw_patient", "audit", "write_report", "write_risk"}


def test_another_learning_rate_trains_again_on_the_same_images(copy):
    assert copy.would_run("--config", "training={learning_rate: 0.0123}") == {"train_model"} | AFTER_TRAINING


def test_a_cap_runs_nothing_again_and_stops_the_run_that_would_cross_it(copy):
    """Some runs of this cohort have no noise, so that every cap is crossed already."""
    assert copy.would_run("--config", "privacy={cap: 9}") == set()
    copy.edit("workflow/scenarios/smoke.yaml", "epsilons: [8]", "epsilons: [8, 3]")
    run = "results/smoke/runs/complex/federated/eps-3/seed-0/model.safetensors"
    said = copy.snakemake(run, "--config", "privacy={cap: 9}", code=1)
    assert "The cap is 9. Nothing was released." in said
    assert not (copy.root / run).exists()
    copy.snakemake(run)


def test_what_another_experiment_released_is_added_up(copy):
    ledgers = copy.root / "ledgers/phantom-smoke"
    ledger = next(ledgers.glob("smoke-*.jsonl"))
    # An experiment may be called like the beginning of another.
    shutil.copyfile(ledger, ledgers / f"smoke-2-{ledger.name}")
    assert "account_total" in copy.would_run()


def test_a_finished_run_with_noise_of_the_system_is_never_trained_again_unasked(copy):
    model = "results/smoke/runs/complex/central/eps-8/seed-0/model.safetensors"
    exact = ("--config", "privacy={noise: os}")
    copy.snakemake(model, *exact)
    folder = (copy.root / model).parent
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "benchmark.tsv" not in kept
    partition = copy.root / "resources/phantom-smoke/partitions/smoke.csv"
    holders = partition.read_text()
    said = copy.snakemake(model, *exact, "partition={nodes: 2}", code=1)
    assert "partition.nodes (then 3, now 2)" in said
    assert partition.read_text() == holders
    copy.add("src/zetadp/training/loop.py")
    copy.snakemake(model, *exact)  # only the rehearsal, which depends on the changed code too
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    said = copy.snakemake(model, *exact, code=1)
    assert "has 1 attempt" in said
    assert "would rise from" in said
    assert "Traceback" not in said
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept

    (ledger,) = (copy.root / "ledgers/phantom-smoke").glob("smoke-complex-central-eps-8-seed-0.jsonl")
    with Ledger(ledger) as opened:
        opened.permit()
    copy.snakemake(model, *exact, "--forcerun", model)
    assert (folder / "model.safetensors").read_bytes() != kept["model.safetensors"]


def test_another_seed_or_epsilon_leaves_finished_runs_alone(copy):
    copy.edit("workflow/scenarios/smoke.yaml", "seeds: [0, 1]", "seeds: [0, 1, 2]")
    assert copy.would_run() == {"train_model"} | AFTER_TRAINING
    copy.edit("workflow/scenarios/smoke.yaml", "epsilons: [8]", "epsilons: [8, 3]")
    trained = re.findall(r"output: (\S+)/model.safetensors", copy.snakemake("--dry-run"))
    assert any("/seed-2" in run for run in trained)
    assert any("/eps-3/" in run for run in trained)
    assert all("/eps-3/" in run or run.endswith("/seed-2") for run in trained)


def test_a_change_of_a_law_trains_only_the_runs_that_release_by_it(copy, tmp_path):
    law = LAW.install(tmp_path / "installed")
    signs = "networks:\n  signs:\n    family: linear\n    training: {mechanism: signs}\n"
    copy.edit("workflow/scenarios/smoke.yaml", "networks:\n", signs)
    runs = "runs:\n  - {networks: [signs], arms: [federated], epsilons: [8], seeds: [0]}\n"
    copy.edit("workflow/scenarios/smoke.yaml", "runs:\n", runs)
    copy.snakemake("train", PYTHONPATH=str(law))
    evaluated = [f"results/smoke/runs/{run}/federated/eps-8/seed-0/privacy.json" for run in ("signs", "complex")]
    copy.snakemake(*evaluated, PYTHONPATH=str(law))
    with (law / "my_laws.py").open("a") as file:
        file.write("\nADDED = True\n")
    said = copy.snakemake("--dry-run", "train", *evaluated, PYTHONPATH=str(law))
    assert re.findall(r"rule (train_model|evaluate):\n(?:.*\n)*? +output: (\S+)/", said) == [
        ("train_model", "results/smoke/runs/signs/federated/eps-8/seed-0"),
        ("evaluate", "results/smoke/runs/signs/federated/eps-8/seed-0"),
    ]


def test_what_was_released_stays_counted_when_results_are_deleted(copy):
    def total() -> dict:
        main = runpy.run_path(str(copy.root / "scripts/account_total.py"))["main"]
        ledgers = str(copy.root / "ledgers/phantom-smoke")
        paths = {"total": copy.root / "total.json", "text": copy.root / "total.txt"}
        paths["table"] = copy.root / "resources/phantom-smoke/index.csv"
        main(ledgers=[], **paths, ledger_folder=ledgers)
        return json.loads(paths["total"].read_text())["private_rows"]

    before = total()
    shutil.rmtree(copy.root / "results")
    copy.snakemake("results/smoke/runs/complex/central/eps-8/seed-0/privacy.json")
    after = total()
    assert (before["runs"], after["runs"]) == (4, 5)
    assert after["epsilon"] > before["epsilon"] + 1
    # The statement of the run is about the model that it made: one training, not two.
    statement = json.loads((copy.root / "results/smoke/runs/complex/central/eps-8/seed-0/privacy.json").read_text())
    assert statement["rounds"] == {"declared": 4, "happened": 4, "replayed": 0}
    assert statement["epsilon"] <= 8
