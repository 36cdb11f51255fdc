"""The smallest scenario from volumes to tables, in a copy of the repository."""

from __future__ import annotations

import base64
import html
import json
import math
import re
import shutil
import sys
import zipfile
from importlib import metadata

import pandas as pd
import pytest
from environments.declared import OF_OTHER_TASKS, RULES
from origins import read_origin

from benchmarks.rules import jobs, table
from zetadp.cli.commands import main

CELLS = {
    ("pretrained", "federated", "8"): 1,
    ("complex", "federated", "8"): 1,
    ("complex", "central", "8"): 1,
    ("real_image", "federated", "inf"): 1,
    ("linear", "federated", "unclipped"): 2,
    ("head", "federated", "8"): 1,
}
RUNS = [f"{n}/{arm}/eps-{epsilon}/seed-{s}" for (n, arm, epsilon), seeds in CELLS.items() for s in range(seeds)]
PRIVATE = [run for run in RUNS if "eps-8" in run]
FIGURES = ("accuracy", "confusion", "curves", "networks", "patient")
OF_A_RUN = (
    "model.safetensors",
    "history.csv",
    "ledger.jsonl",
    "predictions.csv",
    "metrics.json",
    "privacy.json",
    "privacy.txt",
    "MODEL_CARD.md",
    "seal.json",
    "risk.html",
    "risk.svg",
)


def results(checkout):
    return checkout.root / "results/smoke"


def test_every_result_is_there_and_nothing_else_was_written(finished):
    for run in RUNS:
        for name in OF_A_RUN:
            assert (results(finished) / "runs" / run / name).stat().st_size > 0
    assert sorted(path.name for path in (results(finished) / "figures").iterdir()) == [f"{f}.svg" for f in FIGURES]
    for kind in ("csv", "md", "txt"):
        assert (results(finished) / f"tables/table1.{kind}").stat().st_size > 0
    assert not list((results(finished) / "checkpoints").glob("*"))

    made = {path.name for path in finished.root.iterdir()} - {name.split("/")[0] for name in finished.before}
    assert made == {"results", "resources", "ledgers", "logs", ".snakemake"}
    assert finished.files() == finished.before
    assert not list(finished.root.rglob("*.partial*"))


@pytest.mark.parametrize("table", ["tables/table1", "audit/audit"])
def test_tables_say_how_they_were_made(finished, table):
    for kind in ("csv", "md"):
        made = read_origin((results(finished) / f"{table}.{kind}").read_text(), table)
        assert made["command"] == "snakemake --cores 2 --configfile workflow/scenarios/smoke.yaml"
        assert made["commit"] == f"zetadp {metadata.version('zetadp')}", "the copy has no history"
        if table == "tables/table1":
            assert made["cohort"] == "phantom-smoke, 12 + 6 patients, seed 7"
            assert made["seeds"] == "0, 1"


def test_no_run_spends_more_than_it_may(finished):
    for run in RUNS:
        privacy = json.loads((results(finished) / "runs" / run / "privacy.json").read_text())
        assert privacy["epsilon"] == "inf" or 0.99 * 8 <= privacy["epsilon"] <= 8
        assert (privacy["guarantee"] == "none") == (run not in PRIVATE)
        assert privacy["rounds"] == {"declared": 4, "happened": 4, "replayed": 0}
        nodes = ["central"] if "/central/" in run else ["node-01", "node-02", "node-03"]
        assert {name: node["population"] for name, node in privacy["nodes"].items()} == dict.fromkeys(
            nodes, 12 // len(nodes)
        )


def test_the_total_counts_private_runs_and_says_none_for_all(finished):
    total = json.loads((results(finished) / "privacy_total.json").read_text())
    assert total["guarantee"] == total["all_rows"]["guarantee"] == "none"
    assert total["all_rows"]["epsilon"] == "inf"
    assert total["all_rows"]["runs"] == len(RUNS)
    assert len(total["all_rows"]["without_noise"]) == len(RUNS) - len(PRIVATE)
    assert total["private_rows"]["runs"] == len(PRIVATE)
    # Several runs on the same patients: worse than each, and no worse than the sum of epsilons.
    assert 8 < total["private_rows"]["epsilon"] <= 8 * len(PRIVATE)
    assert math.isfinite(total["private_rows"]["epsilon"])


def test_every_run_can_be_verified_beside_its_ledgers(finished, capsys):
    ledgers = finished.root / "ledgers/phantom-smoke"
    for run in RUNS:
        assert main(["verify", str(results(finished) / "runs" / run), "--ledgers", str(ledgers)]) == 0
        assert "wrong" not in capsys.readouterr().out


def test_every_job_logged_and_ran_the_library_of_its_checkout(finished):
    """The same package is installed from another place: that one must not run under the hash of this one."""
    logs = sorted((finished.root / "logs").rglob("*.log"))
    kinds = {log.relative_to(finished.root / "logs").parts[0].removesuffix(".log") for log in logs}
    # These are for real patients, for a real federation, for targets of their own, and for another task.
    elsewhere = {"fetch_cohort", "rehearse", "train_federated", "audit_membership", *OF_OTHER_TASKS}
    again = {"simulate_shapes"}  # a variant of another rule
    assert kinds - again == {*RULES} - elsewhere
    for log in logs:
        assert f"with the library in {finished.root}/src/zetadp\n" in log.read_text(), log


def test_the_table_is_printed_once_and_last(finished):
    table = (results(finished) / "tables/table1.txt").read_text()
    (log,) = (finished.root / ".snakemake/log").iterdir()
    before, *after = log.read_text().split(table)
    assert len(after) == 1
    assert "(100%) done" in before
    # What a job shows on the terminal besides errors has this level.
    assert " NOTICE " not in (finished.root / "logs/make_tables.log").read_text()


def test_the_landing_page_of_the_report_shows_the_result(copy, tmp_path):
    """Its text, table and figure are those of the page that the workflow writes."""
    copy.snakemake("--report", "report.zip")
    with zipfile.ZipFile(copy.root / "report.zip") as report:
        report.extractall(tmp_path)
    page = next(tmp_path.glob("*/report.html"))
    (landing,) = re.findall(r"^ *var workflow_desc = (.*?);?$", page.read_text(), flags=re.MULTILINE)
    shown = json.loads(landing)
    assert "system-message" not in shown, "docutils refused a part"
    total = json.loads((results(copy) / "privacy_total.json").read_text())
    assert total["statement"] in html.unescape(shown)
    assert "results on a simulation" in shown
    picture = base64.b64encode((results(copy) / "figures/accuracy.svg").read_bytes()).decode()
    assert picture in "".join(shown.split())
    assert shown.count("<table") == 1


def test_the_time_of_rules_counts_every_job_once(finished):
    """Also a job with several outputs, and no run of another experiment."""
    made = jobs(finished.root, "smoke")
    counts = made["rule"].value_counts()
    assert (counts["train_model"], counts["evaluate"], counts["make_tables"]) == (len(RUNS), len(RUNS), 1)
    assert (made["ended"] >= made["began"]).all()
    assert [row[:2] for row in table(made, "smoke").rows if "evaluate" in row[0]] == [("`evaluate`", str(len(RUNS)))]
    assert set(jobs(finished.root, "other")["rule"]).isdisjoint({"train_model", "evaluate", "make_tables"})


def test_a_forked_job_that_is_killed_fails_alone(copy):
    """The first job waits until there is a process to fork from; the second notes its parent and is killed."""
    main, table = 'if __name__ == "__main__":\n', "results/smoke/tables/table1.txt"
    for name, lines in (
        ("account_total", ["import glob, time", "while not glob.glob('warm-*/socket'): time.sleep(0.1)"]),
        (
            "make_tables",
            [
                "import os",
                "Path('parent').write_text(Path(f'/proc/{os.getppid()}/cmdline').read_text())",
                "if 'DIES' in os.environ: os.kill(os.getpid(), 9)",
            ],
        ),
    ):
        copy.edit(f"scripts/{name}.py", main, main + "".join(f"    {line}\n" for line in lines))
    started = {"python": sys.executable, "TMPDIR": str(copy.root)}  # as a user starts it, without a warm Python
    assert "Error in rule make_tables" in copy.snakemake(table, code=1, DIES="yes", **started)
    assert "base/warm.py" in (copy.root / "parent").read_text()
    assert not list(copy.root.glob("warm-*"))
    assert copy.would_run(table) == {"make_tables"}
    copy.snakemake(table, **started)
    assert (copy.root / table).exists()


def test_the_headline_takes_three_seeds_of_the_first_block(copy):
    copy.edit("workflow/scenarios/smoke.yaml", "seeds: [0]\n", "seeds: [5, 4, 3, 2, 1]\n")
    trained = re.findall(r"output: results/smoke/runs/(\S+)/model", copy.snakemake("--dry-run", "headline"))
    assert sorted(trained) == [f"pretrained/federated/eps-8/seed-{seed}" for seed in (3, 4, 5)]


def test_the_headline_is_of_the_first_runs_and_says_that_others_follow(copy):
    """Its total is that of what was recorded when it was made."""
    # As after the first block of runs: ledgers of the others, and what names them, are not there yet.
    ledgers = copy.root / "ledgers/phantom-smoke"
    shutil.rmtree(ledgers)
    shutil.rmtree(results(copy) / "runs/pretrained")
    said = copy.snakemake("headline")
    headline = results(copy) / "headline"
    text = (headline / "tables/table1.txt").read_text()
    assert said.count(text) == 1
    assert f"1 of the experiment's {len(RUNS)} runs." in text
    assert "1 private run: " in text
    assert "pretrained" in text
    assert "real_image" not in text
    rows, whole = (
        pd.read_csv(folder / "tables/table1.csv", comment="#", dtype={"epsilon": str})
        for folder in (headline, results(copy))
    )
    pd.testing.assert_frame_equal(rows, whole[whole["network"] == "pretrained"].reset_index(drop=True))
    assert b"</svg>" in (headline / "figures/accuracy.svg").read_bytes()
    # What is whole says nothing of the kind, and is not made again.
    assert "runs. The others" not in (results(copy) / "tables/table1.txt").read_text()
    assert copy.would_run("headline") - {"headline"} == set()


DATA = {"simulate_patients", "assemble_cohort", "index_cohort"}
KSPACE = DATA | {"slice_volumes", "make_kspace", "whiten", "partition", "find_duplicates"}
TRAIN = KSPACE - {"find_duplicates"} | {
    "calibrate",
    "train_model",
    "simulate_public",
    "simulate_shapes",
    "pretrain",
    "extract_features",
}


@pytest.mark.parametrize(
    ("target", "rules"),
    [
        ("kspace", KSPACE),
        ("headline", TRAIN - {"whiten"} | {"evaluate", "account_headline", "tabulate_headline", "draw_headline"}),
        ("figures", TRAIN | {"fit_study", "evaluate", "make_figures", "draw_patient"}),
    ],
)
def test_named_targets_need_their_part_of_the_workflow(fresh, target, rules):
    assert fresh.would_run(target) - {target} == rules


def test_one_network_that_nobody_watches_has_no_empty_figure(fresh):
    runs = "runs=[{networks: [head], arms: [federated], epsilons: [8], seeds: [0]}]"
    said = fresh.snakemake("--dry-run", "--config", "partition={validation_patients: 0}", runs)
    assert set(re.findall(r"figures/(\w+)\.svg", said)) == {"accuracy", "confusion", "patient"}


def test_no_picture_of_a_patient_is_drawn_where_noise_protects_them(fresh):
    """Unless it is asked for by name."""
    assert "draw_patient" not in fresh.would_run("--config", "privacy={noise: os}")
    name = "results/smoke/figures/patient.svg"
    assert "draw_patient" in fresh.would_run(name, "--config", "privacy={noise: os}")


def test_the_total_is_on_the_screen_before_anything_is_done_with_real_patients(fresh):
    (fresh.root / "hospital").mkdir()
    (fresh.root / "hospital/dataset.json").write_text("{}")
    cohort = (
        "cohort: {name: mine, source: folder, folder: hospital, train_patients: 12, test_patients: 6, unit: record}"
    )
    partition = "partition: {nodes: 1, validation_patients: 0}"
    runs = "runs: [{networks: [head], arms: [federated], epsilons: [8], seeds: [0]}]"
    text = "\n".join(("name: mine", cohort, partition, "privacy: {noise: os}", runs, ""))
    (fresh.root / "mine.yaml").write_text(text)
    said = fresh.snakemake("resources/mine/index.csv", configfile="mine.yaml", code=1)
    before, after = said.split("on real patients (cohort mine): at most epsilon 8 at delta 0.001", maxsplit=1)
    assert "rule index_cohort" not in before
    assert "rule index_cohort" in after
