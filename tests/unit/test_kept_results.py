"""What docs/results keeps says how it was made, and that is what scenarios, benchmarks and history say too."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from origins import read_origin
from run_builder import write_run

from zetadp.backbone.axes import WHITENING
from zetadp.base.validation import UserError
from zetadp.config.configured import run_names
from zetadp.core.settings import TrainingSettings
from zetadp.privacy import accounting
from zetadp.tasks.ecg.encoder import BeatEncoderSettings

ROOT = Path(__file__).parents[2]
KEPT = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs/results").rglob("*")
    if path.suffix in {".csv", ".md"} and path.name != "README.md"
)
OF_ATTACKS = {"audit": "audit", "inversion": "invert_gradients", "candidates": "name_candidates"}
"""Scripts whose tables are of patients that they simulate, by the tables' names."""
HASH = r"[0-9a-f]{7,40}"
COMMIT = rf"(unknown|{HASH})(, added by {HASH}|; trainings by (unknown|{HASH})(, {HASH})*)?"


@pytest.fixture
def benchmark(monkeypatch):
    """Return what a file of the benchmarks defines; they import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield lambda name: runpy.run_path(str(ROOT / f"benchmarks/{name}.py"))
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def origin_of(table: str) -> dict[str, str]:
    return read_origin((ROOT / table).read_text(), table)


def commands_of(target: str) -> str:
    """Return the commands of a target of the Makefile."""
    found = re.search(rf"^{target}: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert found, f"the Makefile has no target {target}"
    return found[1]


def programs(command: str) -> list[str]:
    """Return the benchmarks that a command runs."""
    target = re.fullmatch(r"make ([\w-]+)(?: CONFIG=\S+)?", command)
    return re.findall(r"python benchmarks/(\w+)\.py", commands_of(target[1]) if target else command)


def scenario(command: str) -> str | None:
    """Return the scenario of a command of the workflow; None is the default."""
    found = re.search(r"(?:--configfile |CONFIG=)workflow/scenarios/(\w+)\.yaml", command)
    assert found or not re.search("configfile|CONFIG|--config", command)
    return found[1] if found else None


def test_there_are_tables():
    assert {"docs/results/default/table1.csv", "docs/results/phantom_full_ablation.md"} <= set(KEPT)


@pytest.mark.parametrize("table", KEPT)
def test_cohort_and_seeds_are_those_that_the_command_declares(table, benchmark):
    made = origin_of(table)
    assert made["command"].startswith(("make ", "snakemake ", "python benchmarks/"))
    if script := OF_ATTACKS.get(Path(table).stem if "attacks/" in table or "default/" in table else ""):
        attack = runpy.run_path(str(ROOT / f"scripts/{script}.py"))
        declared = [(attack["COHORT"], attack["SEEDS"])]
    elif names := programs(made["command"]):
        declared = [benchmark(name)["declared"]() for name in names]
    else:
        declared = [benchmark("scenarios")["declared_by"](scenario(made["command"]))]
    assert [(made["cohort"], made["seeds"])] * len(declared) == declared


@pytest.mark.parametrize("table", KEPT)
def test_the_commit_is_one_of_this_history(table):
    said = origin_of(table)["commit"]
    assert re.fullmatch(COMMIT, said), "also where code was changed after the commit, it cannot be made again"
    if not has_history():
        return  # an archive or a shallow clone cannot tell more
    for commit in re.findall(rf"\b{HASH}\b", said):
        assert git("merge-base", "--is-ancestor", commit, "HEAD") is not None, f"{commit} is no commit before this one"


def git(*arguments: str) -> str | None:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def has_history() -> bool:
    if shutil.which("git") is None:
        return False
    top = git("rev-parse", "--show-toplevel")
    return top is not None and Path(top) == ROOT and git("rev-parse", "--is-shallow-repository") == "false"


def rows(table: str) -> list[dict[str, str]]:
    lines = (ROOT / "docs/results" / table).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def declared_seeds(config: dict) -> Counter:
    return Counter((run.network, run.arm, run.epsilon) for run in run_names(config))


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("default/table1", None),
        ("arms/table1", "arms"),
        ("study/table1", "study"),
        ("longer/table1", "longer"),
        ("uneven/table1", "uneven"),
        ("paper_large/table1", "paper_large"),
        ("phantom_full", "phantom_full"),
        ("speech_commands/start", "speech_commands_start"),
    ],
)
def test_every_cell_has_as_many_seeds_as_the_scenario_declares(table, name, benchmark):
    no_runs = {"public_head", "paper"} if name == "phantom_full" else set()
    found = {
        (row["network"], row["arm"], row["epsilon"]): int(row["seeds"])
        for row in rows(f"{table}.csv")
        if row["network"] not in no_runs
    }
    assert found == declared_seeds(benchmark("scenarios")["configuration"](name))


def test_shares_follow_from_the_accuracies_beside_them():
    found = rows("shares.csv")
    assert found
    for row in found:
        low, middle, high = (float(row[name]) for name in ("public alone", "private", "best without noise"))
        if not row["share"]:  # nothing to gain that the test patients would show; of whole volumes, those of three
            assert high - low < (100 * 3 / 222 if row["decision"] == "volumes together" else 1)
            continue
        assert float(row["share"]) == pytest.approx(100 * (middle - low) / (high - low), abs=0.01)
        assert float(row["low"]) < float(row["share"]) < float(row["high"])


def test_shares_are_of_every_cohort_decision_head_and_epsilon(benchmark):
    shares = benchmark("shares")
    found = [(row["cohort"], row["decision"], row["network"], row["epsilon"]) for row in rows("shares.csv")]
    heads = ("study_steep", "study_gentle")
    assert found == list(product(shares["SCENARIOS"], shares["SHOWN"].values(), heads, ("1", "8")))


def test_runs_of_the_paper_s_table_join_those_of_other_machines(benchmark, tmp_path):
    paper = benchmark("paper")
    tables, label = paper["tables"], "simulated cohort"
    folders = [
        write_run(tmp_path, {"a": 3 + 4 * seed, "b": 9 - seed}, epsilon=epsilon, seed=seed)
        for epsilon, seeds in (("1", 3), ("8", 2))
        for seed in range(seeds)
    ]
    every = tables.collect(folders)
    whole = tables.table1(every, label)
    of_first = tables.table1(every[every["seed"] == 0], label)

    table, runs = paper["with_earlier"](every[every["seed"] > 0], label, of_first)
    for name in ("seeds", "mean", "std", "volume_accuracy"):
        assert table[name].tolist() == pytest.approx(whole[name].tolist())
    assert len(runs) == 5

    nothing, _ = paper["earlier"](tmp_path / "none.csv")
    pd.testing.assert_frame_equal(paper["with_earlier"](every, label, nothing)[0], whole)

    again, runs = paper["with_earlier"](every, label, whole.assign(mean=0.0))
    pd.testing.assert_frame_equal(again, whole)  # all runs are here
    assert len(runs) == 5

    fewer, runs = paper["with_earlier"](every[every["seed"] == 1], label, whole)
    assert fewer["mean"].tolist() == whole["mean"].tolist()  # the kept cells have this seed
    assert len(runs) == 5


def test_readme_and_the_list_say_what_the_tables_say():
    default = rows("default/table1.csv")
    table = {(row["network"], row["epsilon"]): f"{float(row['mean']):.1f} %" for row in default}
    start = {row["network"]: f"{float(row['public_start']):.1f} %" for row in default if row["public_start"]}
    said = " ".join((ROOT / "README.md").read_text().replace("**", "").split())
    for name, network in (
        ("head with a steep taper on the public backbone", "study_steep"),
        ("head with a gentle taper", "study_gentle"),
    ):
        cells = (start[network], *(table[network, epsilon] for epsilon in ("1", "8", "inf")))
        assert f"| {name} | {' | '.join(cells)} |" in said
    best = table["backbone", "unclipped"]
    assert f"| whole backbone, trained on | {start['backbone']} | | | {best} |" in said
    scratch = f"{table['complex', '8']} | {table['complex', 'inf']}"
    assert f"| small network, trained from scratch | | | {scratch} |" in said
    shares = {
        (row["cohort"], row["network"], row["epsilon"]): f"{float(row['share']):.0f} %"
        for row in rows("shares.csv")
        if row["decision"] == "a slice together" and row["share"]
    }
    one, eight = (shares["no atlas (the default)", *cell] for cell in (("study_steep", "1"), ("study_gentle", "8")))
    assert f"private training goes {one} of the way at ε = 1 and {eight} at ε = 8" in said
    volumes = {
        (row["network"], row["epsilon"]): f"from {float(row['public alone']):.1f} to {float(row['private']):.1f} %"
        for row in rows("shares.csv")
        if (row["cohort"], row["decision"]) == ("no atlas (the default)", "volumes together")
    }
    assert f"{volumes['study_steep', '1']} at ε = 1 and {volumes['study_gentle', '8']} at ε = 8" in said
    one, eight = (shares["drawn from a commit's hash", *cell] for cell in (("study_steep", "1"), ("study_gentle", "8")))
    assert f"There it goes {one} of the way at ε = 1 and {eight} at ε = 8" in said
    head = "head on public features, one holder"
    found = rows("phase_mnist/table.csv")
    digits = {(row["examples"], row["method"], row["epsilon"]): float(row["mean"]) for row in found}
    composites = digits["composites, each image in several", head, "0.53"]
    plain = digits["plain digits", head, "0.53"]
    assert f"At ε = 0.53: {composites:.2f} % and {plain:.2f} %" in (ROOT / "docs/experiments.md").read_text()


def test_phase_mnist_has_as_many_seeds_as_its_scenarios_declare(benchmark):
    found = {(row["examples"], row["method"], row["epsilon"]): row for row in rows("phase_mnist/table.csv")}
    program = benchmark("phase_mnist")
    for name, examples in program["SCENARIOS"].items():
        for (network, arm, epsilon), seeds in declared_seeds(benchmark("scenarios")["configuration"](name)).items():
            row = found.pop((examples, program["METHODS"][network, arm], epsilon))
            assert int(row["seeds"]) == seeds
            expected = program["PRINTED"].get((name, epsilon), ("", "")) if network == "mlp" else ("", "")
            assert (row["printed"], row["printed_epsilon"]) == tuple(map(str, expected))
    assert found == {}


def test_what_phase_mnist_compares_is_trained_alike(benchmark):
    configured = [benchmark("scenarios")["configuration"](name) for name in benchmark("phase_mnist")["SCENARIOS"]]
    heads = [config["networks"]["head"] for config in configured]
    assert heads[0] == heads[1] == heads[2]
    trainings = [config["networks"]["mlp"]["training"] for config in (configured[0], configured[2])]
    assert trainings[0] == trainings[1]


def test_what_the_paper_prints_stands_at_what_its_noise_gives(benchmark):
    """Sampling rate 0.01, 1000 rounds and noise multiplier 1.1; its code makes that too small by the root of two."""
    for scenario, noise in (("phase_mnist", 1.1 / 2**0.5), ("mnist", 1.1)):
        true = accounting.epsilon({(0.01, noise): 1000}, 1e-5)
        (epsilon,) = {e for name, e in benchmark("phase_mnist")["PRINTED"] if name == scenario} - {"inf"}
        assert float(epsilon) == pytest.approx(true, abs=0.005)


def test_the_chosen_steps_of_phase_mnist_are_the_best_of_its_search(benchmark):
    chosen = benchmark("scenarios")["configuration"]("phase_mnist")["networks"]["head"]["training"]
    searched = [row for row in rows("phase_mnist/search.csv") if (row["learned"], row["whitening"]) == ("64", "0.5")]
    steps = [row for row in searched if (row["scattering"], row["averaged"]) == ("150", "0.5")]
    best = max(steps, key=lambda row: float(row["accuracy"]))
    assert len(steps) == 12
    for key, name in {"rounds": "rounds", "clip": "clip", "learning_rate": "rate", "momentum": "momentum"}.items():
        assert chosen[key] == float(best[name])


def test_the_table_of_ecg_has_every_method_with_its_seeds_and_a_true_epsilon(benchmark):
    program = benchmark("ecg")
    found = {row["method"]: row for row in rows("ecg/table.csv")}
    assert list(found) == list(program["METHODS"])
    for method, (network, epsilon, seeds) in program["METHODS"].items():
        row = found[method]
        assert int(row["seeds"]) == len(seeds)
        assert float(row["ci_low"]) <= float(row["mean"]) <= float(row["ci_high"])
        if network is None:
            assert row["epsilon"] == row["epsilon_nine"] == ""
        elif epsilon == "inf":
            assert row["epsilon"] == row["epsilon_nine"] == "inf"
        else:
            assert 0.99 * float(epsilon) < float(row["epsilon"]) <= float(epsilon)
            assert float(row["epsilon_nine"]) > 3 * float(epsilon)


def test_the_list_and_the_page_say_of_ecg_what_its_table_says():
    found = {row["method"]: row for row in rows("ecg/table.csv")}
    head = f"{float(found['head on public features']['mean']):.2f} %"
    assert f"on patients of PTB-XL: {head}" in (ROOT / "docs/experiments.md").read_text()
    page = (ROOT / "docs/ecg.md").read_text()
    for row in found.values():
        assert f"{float(row['mean']):.2f}" in page


def test_the_epsilons_of_the_papers_ecg_settings_are_true():
    """Sampling rate 0.063, 1588 rounds, noise multiplier 5; its code makes that too small by the root of two."""
    page = (ROOT / "docs/ecg.md").read_text()
    for noise, words in ((5, "by the privacy-loss distribution"), (5 / 2**0.5, "square root of two")):
        true = accounting.epsilon({(0.063, noise): 1588}, 4.95e-4)
        assert re.search(rf"{words} \| {true:.2f} \|", page)


def test_the_chosen_steps_and_features_of_ecg_are_the_best_of_their_search(benchmark):
    chosen = benchmark("scenarios")["configuration"]("ecg")["networks"]["head"]["training"]
    features = {"components": str(BeatEncoderSettings().components), "whitening": f"{WHITENING:g}"}
    searched = rows("ecg/search.csv")
    best = max((row for row in searched if features.items() <= row.items()), key=lambda row: float(row["mean"]))
    for key, name in {"rounds": "rounds", "clip": "clip", "learning_rate": "rate", "momentum": "momentum"}.items():
        assert chosen[key] == float(best[name])
    assert max(float(row["mean"]) for row in searched) == float(best["mean"])


def test_spoken_commands_have_as_many_seeds_as_their_scenarios_declare(benchmark):
    found = {(row["unit"], row["method"], row["epsilon"]): row for row in rows("speech_commands/table.csv")}
    program = benchmark("speech_commands")
    for name, unit in program["SCENARIOS"].items():
        for (network, arm, epsilon), seeds in declared_seeds(benchmark("scenarios")["configuration"](name)).items():
            row = found.pop((unit, program["METHODS"][network, arm], epsilon))
            assert int(row["seeds"]) == seeds
            spent = float(row["epsilon_per_speaker"])
            own = float(epsilon)
            assert spent == pytest.approx(own, rel=1e-3) if unit == "speaker" else spent >= 2 * own
    assert found.pop(("none", program["PUBLIC"], "0"))["epsilon_per_speaker"] == "0"
    assert {key: (float(row["mean"]), row["printed_epsilon"]) for key, row in found.items()} == {
        ("clip", "the paper, printed", epsilon): printed for epsilon, printed in program["PRINTED"].items()
    }


def test_what_the_paper_prints_of_speech_stands_at_what_its_noise_gives(benchmark):
    """Sampling rate 0.009, five epochs and noise multiplier 1, which its code makes too small by the root of two."""
    (epsilon,) = set(benchmark("speech_commands")["PRINTED"]) - {"inf"}
    assert float(epsilon) == pytest.approx(accounting.epsilon({(0.009, 1 / 2**0.5): 556}, 1e-5), abs=0.006)


@pytest.mark.parametrize(
    ("scenario", "network", "unit", "epsilon"),
    [
        ("speech_commands", "head", "clip", "1.47"),
        ("speech_commands_speakers", "head", "speaker", "8"),
        ("speech_commands_speakers", "slow_head", "speaker", "1"),
    ],
)
def test_the_chosen_steps_of_spoken_commands_are_the_best_of_their_search(scenario, network, unit, epsilon, benchmark):
    chosen = benchmark("scenarios")["configuration"](scenario)["networks"][network]["training"]
    found = rows("speech_commands/search.csv")
    searched = [row for row in found if (row["unit"], row["epsilon"]) == (unit, epsilon)]
    best = max(searched, key=lambda row: float(row["auc"]))
    assert len(searched) == 10
    for key, name in {"rounds": "rounds", "clip": "clip", "learning_rate": "rate", "momentum": "momentum"}.items():
        assert chosen[key] == float(best[name])


def test_the_ablation_is_of_the_same_runs_as_the_extended_table():
    table = {(row["network"], row["epsilon"]): row for row in rows("phantom_full.csv") if row["arm"] == "federated"}
    for row in rows("phantom_full_ablation.csv"):
        for epsilon in ("1", "8", "inf"):
            cell = table[row["network"], epsilon]
            assert row[f"seeds_{epsilon}"] == cell["seeds"]
            assert row[f"mean_{epsilon}"] == cell["mean"]


def test_the_default_head_is_the_best_of_the_recorded_search(benchmark):
    best = max((row for row in rows("head_selection.csv") if row["epsilon"] == "1"), key=lambda row: float(row["mean"]))
    head = benchmark("scenarios")["configuration"](None)["networks"]["pretrained"]
    training = {key: head["training"][key] for key in ("rounds", "learning_rate", "clip", "averaged")}
    assert head["components"] == int(best["components"])
    assert list(training.values()) == [float(best[key]) for key in ("rounds", "rate", "clip", "averaged")]


def test_heads_on_a_study_have_the_best_setting_of_their_recorded_search(benchmark):
    networks = benchmark("scenarios")["configuration"](None)["networks"]
    for name, epsilon in (("study_steep", "1"), ("study_gentle", "8")):
        tried = [row for row in rows("study_selection.csv") if row["epsilon"] == epsilon]
        assert len(tried) == 36
        best = max(tried, key=lambda row: float(row["mean"]))
        head, training = networks[name], networks[name]["training"]
        found = [head["components"], head["taper"], *(training[key] for key in ("rounds", "learning_rate", "clip"))]
        assert found == [float(best[key]) for key in ("components", "taper", "rounds", "rate", "clip")]


def test_larger_heads_have_the_best_setting_of_their_recorded_search(benchmark):
    of = benchmark("worth")["METHODS"]
    for row in rows("worth.csv"):
        if row["method"].endswith("shipped"):
            continue
        wanted = {"features": of[row["method"]][1], "epsilon": row["epsilon"]}
        tried = [each for each in rows("worth_selection.csv") if wanted.items() <= each.items()]
        assert len(tried) == 18
        best = max(tried, key=lambda each: float(each["mean"]))
        assert int(row["numbers"]) == 4 * (int(best["components"]) + 1)


@pytest.mark.parametrize("estimator", ["class_means", "least_squares"])
def test_the_feature_norm_is_the_best_of_the_recorded_search(estimator):
    wanted = {"estimator": estimator, "components": "4", "start": "public", "epsilon": "1"}
    tried = [row for row in rows("closed_form.csv") if wanted.items() <= row.items()]
    assert len(tried) == 3
    best = max(tried, key=lambda row: float(row["mean"]))
    assert float(best["feature_norm"]) == TrainingSettings(rounds=1).feature_norm


# The extended table's programs, on finished runs


PATIENTS = [f"patient-{number}" for number in range(6)]


def write_metrics(results: Path, network: str, arm: str, epsilon: str, seed: int | str, accuracy: np.ndarray) -> Path:
    path = results / f"runs/{network}/{arm}/eps-{epsilon}/seed-{seed}/metrics.json"
    path.parent.mkdir(parents=True)
    environment = {"device": "abacus", "cores": 2}
    path.write_text(
        json.dumps({"per_patient": dict(zip(PATIENTS, accuracy.tolist(), strict=True)), "environment": environment})
    )
    return path


@pytest.fixture
def finished(tmp_path, benchmark) -> tuple[Path, dict[tuple[str, str, str], list[np.ndarray]]]:
    """Write every run that the scenario of the extended table declares; return the accuracies of its patients too."""
    random = np.random.default_rng(0)
    accuracies: dict[tuple[str, str, str], list[np.ndarray]] = {}
    for run in sorted(
        run_names(benchmark("scenarios")["configuration"]("phantom_full")), key=lambda run: int(run.seed)
    ):
        drawn = random.uniform(0.3, 0.9, len(PATIENTS))
        accuracies.setdefault((run.network, run.arm, run.epsilon), []).append(drawn)
        write_metrics(tmp_path / "results", run.network, run.arm, run.epsilon, run.seed, drawn)
    return tmp_path / "results", accuracies


def ablation(results: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/ablation.py", "--results", str(results), "--output", str(output)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_ablation_is_of_the_declared_runs_whatever_else_the_folder_holds(finished, tmp_path):
    results, accuracies = finished
    for seed in (7, "old"):
        write_metrics(results, "tuned_norms", "federated", "8", seed, np.ones(len(PATIENTS)))
    done = ablation(results, tmp_path / "tables")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "tables/phantom_full_ablation.csv", comment="#", index_col="network")
    for network, row in table.iterrows():
        for epsilon in ("1", "8", "inf"):
            expected = accuracies[network, "federated", epsilon]
            assert row[f"seeds_{epsilon}"] == len(expected)
            assert row[f"mean_{epsilon}"] == pytest.approx(100 * np.mean(expected), rel=1e-5)
    # A step is compared with the one before over the seeds that both have.
    norms, whole = (accuracies[network, "federated", "inf"] for network in ("tuned_norms", "tuned"))
    assert (len(norms), len(whole)) == (2, 5)
    assert table.loc["tuned_norms", "gained_inf"] == pytest.approx(
        100 * (np.mean(norms) - np.mean(whole[:2])), rel=1e-4
    )
    differences = pd.read_csv(tmp_path / "tables/phantom_full_differences.csv", comment="#")
    assert list(differences["seeds"]) == [10, 10, 5, 2, 3, 3]
    for name in ("ablation.csv", "ablation.md", "differences.csv", "differences.md"):
        made = read_origin((tmp_path / f"tables/phantom_full_{name}").read_text(), name)
        assert made["command"].startswith("python benchmarks/ablation.py --results ")
        assert (made["seeds"], made["hardware"]) == ("0 to 9", "abacus, 2 cores")


def test_the_ablation_names_a_declared_run_that_is_missing(finished, tmp_path):
    results, _ = finished
    missing = results / "runs/tuned_norms/federated/eps-8/seed-1/metrics.json"
    missing.unlink()
    done = ablation(results, tmp_path / "tables")
    assert done.returncode == 1
    assert str(missing) in done.stderr
    assert "snakemake --cores all --configfile workflow/scenarios/phantom_full.yaml" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "tables").exists()


def write_table(results: Path, cells: Counter) -> None:
    columns = ["network", "arm", "epsilon", "seeds"]
    (results / "tables").mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame([(*cell, seeds) for cell, seeds in cells.items()], columns=columns)
    frame.to_csv(results / "tables/table1.csv", index=False)


@pytest.mark.parametrize("seeds", [0, 1, 3])
def test_a_table_of_other_runs_than_the_declared_is_refused(seeds, tmp_path, benchmark):
    experiment = benchmark("scenarios")["Experiment"].of("phantom_full", tmp_path)
    with pytest.raises(UserError, match=r"found no .*table1\.csv"):
        experiment.table()
    declared = declared_seeds(experiment.config)
    write_table(tmp_path, declared)
    assert len(experiment.table()) == len(declared)
    cell = ("tuned", "federated", "8")
    there = Counter({**declared, cell: seeds})
    write_table(tmp_path, +there)
    with pytest.raises(UserError, match=rf"Expected 2 run\(s\) of {', '.join(cell)} .* found {seeds}\."):
        experiment.table()


def test_a_cell_that_the_scenario_does_not_declare_is_refused(tmp_path, benchmark):
    experiment = benchmark("scenarios")["Experiment"].of("phantom_full", tmp_path)
    write_metrics(tmp_path, "shaped", "federated", "3", 0, np.ones(len(PATIENTS)))
    with pytest.raises(UserError, match="shaped, federated, epsilon 3"):
        experiment.metrics("shaped", "federated", "3")
