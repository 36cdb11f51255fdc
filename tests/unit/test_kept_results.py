"""What is kept of results says how it was made, and that is what scenarios, programs and history say too."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from origins import read_origin

from papers.experiments import Experiment, declared_by
from papers.join import declared_joins, scenarios_of

ROOT = Path(__file__).parents[2]
PLACES = [ROOT / "docs/results", *ROOT.glob("papers/*/results")]
KEPT = sorted(
    path.relative_to(ROOT).as_posix()
    for place in PLACES
    for path in place.rglob("*")
    if path.suffix in {".csv", ".md"} and path.name != "README.md"
)
HASH = r"[0-9a-f]{7,40}"
COMMIT = rf"(unknown|{HASH})(, added by {HASH}|; trainings by (unknown|{HASH})(, {HASH})*)?"
GONE = "nothing: a program of that commit made it"
ATTACKS = {"audit", "inversion", "candidates"}
"""Names of tables whose patients are simulated by the attacks themselves."""


def origin_of(table: str) -> dict[str, str]:
    return read_origin((ROOT / table).read_text(), table)


def command_of(table: str) -> str:
    """Return the command that makes a table today, which is the original one unless the table says otherwise."""
    now = re.search(r"^(?:#|-) now: (.+)$", (ROOT / table).read_text(), flags=re.MULTILINE)
    return now[1] if now else origin_of(table)["command"]


def scenario(command: str) -> str | None:
    """Return the scenario of a command of the workflow; None is the default."""
    found = re.search(r"(?:--configfile |CONFIG=)\S*scenarios/(\w+)\.yaml", command)
    assert found or not re.search("configfile|CONFIG|--config", command)
    return found[1] if found else None


@pytest.mark.parametrize("table", KEPT)
def test_what_makes_a_table_today_is_there(table):
    command = command_of(table)
    if command == GONE:
        return
    kind, _, rest = command.partition(" ")
    if kind == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        targets += [f"paper-{paper.parent.name}" for paper in ROOT.glob("papers/*/paper.yaml")]
        assert rest.split()[0] in targets
        assert all((ROOT / path).is_file() for path in re.findall(r"CONFIG=(\S+)", rest))
    elif kind == "snakemake":
        assert all((ROOT / path).is_file() for path in re.findall(r"--configfile (\S+)", rest))
    else:
        program = re.fullmatch(r"python -m ([\w.]+).*", command)
        assert program, command
        assert (ROOT / program[1].replace(".", "/")).with_suffix(".py").is_file()


JOINED = {
    f"papers/{paper.parent.name}/results/{name}": scenarios_of(join)
    for paper in ROOT.glob("papers/*/paper.yaml")
    for name, join in declared_joins(paper.parent.name).items()
}


def scenarios_that_make(table: str) -> list[str | None]:
    """Return the scenarios whose runs a table shows; none where programs or attacks simulate their own data."""
    joined = JOINED.get(table.rpartition(".")[0])
    if joined is not None:
        return list(joined)
    command = command_of(table)
    of_runs = command.startswith(("make results", "snakemake ")) and Path(table).stem not in ATTACKS
    return [scenario(command)] if of_runs else []


@pytest.mark.parametrize("table", [table for table in KEPT if scenarios_that_make(table)])
def test_cohort_and_seeds_are_those_that_scenarios_declare(table):
    made = origin_of(table)
    assert (made["cohort"], made["seeds"]) == declared_by(*scenarios_that_make(table))


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
    lines = (ROOT / table).read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("table", [table for table in KEPT if table.endswith(".csv") and "network" in rows(table)[0]])
def test_every_cell_has_as_many_seeds_as_the_scenario_declares(table):
    command = command_of(table)
    if not command.startswith(("make results", "snakemake ")) or "seeds" not in rows(table)[0]:
        return
    no_runs = (
        {"public_head", "paper", "least_squares", "tuned_low_rank"} if table.endswith("phantom_full.csv") else set()
    )
    found = {
        (row["network"], row["arm"], row["epsilon"]): int(row["seeds"])
        for row in rows(table)
        if row["network"] not in no_runs
    }
    assert found == {cell: len(runs) for cell, runs in Experiment.of(scenario(command)).cells.items()}


def words_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().replace("**", "").split())


def test_readme_and_the_page_on_the_method_show_the_default_table():
    default = rows("docs/results/default/table1.csv")
    table = {(row["network"], row["epsilon"]): f"{float(row['mean']):.1f} %" for row in default if row["arm"] != "sums"}
    sums = {row["epsilon"]: f"{float(row['mean']):.1f} %" for row in default if row["arm"] == "sums"}
    start = {row["network"]: f"{float(row['public_start']):.1f} %" for row in default if row["public_start"]}
    said, page = words_of("README.md"), words_of("docs/pretraining.md")
    cells = (start["head"], *(table["head", epsilon] for epsilon in ("1", "8", "inf")))
    assert f"| head on the public backbone | {' | '.join(cells)} |" in page
    begin, one, _, _ = cells
    assert f"a head on the public network classifies {one} of the test images correctly" in said
    assert f"The public network alone reaches {begin}," in said
    assert f"| the same with masked sums | {start['head']} | {sums['1']} | {sums['8']} | |" in page
    best = table["backbone", "unclipped"]
    assert f"| whole backbone, trained on | {start['backbone']} | | | {best} |" in page
    scratch = f"{table['complex', '8']} | {table['complex', 'inf']}"
    assert f"| small network, trained from scratch | | | {scratch} |" in page
    assert f"Trained from scratch at ε = 8, a small network reaches {table['complex', '8']}." in said
    reached = {row["epsilon"]: row for row in default if (row["network"], row["arm"]) == ("head", "federated")}
    low, best = float(reached["1"]["public_start"]), float(reached["inf"]["mean"])
    one, eight = (f"{100 * (float(reached[epsilon]['mean']) - low) / (best - low):.0f} %" for epsilon in ("1", "8"))
    gap = "the gap between the public head and the same head trained without noise"
    assert f"At ε = 1, private training recovers {one} of {gap}, and at ε = 8, {eight}" in said
    one, eight = (f"{float(reached[epsilon]['image_accuracy']):.1f} %" for epsilon in ("1", "8"))
    assert f"{one} at ε = 1, {eight} at ε = 8" in page
    alone, together = (
        f"{best - float(row['mean']):.1f} points"
        for arm in ("federated", "sums")
        for row in default
        if (row["network"], row["arm"], row["epsilon"]) == ("head", arm, "8")
    )
    assert f"noise costs {alone} of accuracy if every hospital protects its messages alone, and {together} with" in said


def test_readme_shows_the_accuracy_on_real_people():
    reached = {
        (row["head"], row["epsilon"]): f"{float(row['slice %']):.0f} %"
        for row in rows("docs/results/real_heads.csv")
        if row["shown"] == "skull and scalp"
    }
    said = words_of("README.md")
    assert f"the public head classifies {reached['public', 'none']} of the images correctly" in said
    assert f"Heads trained on forty of them at ε = 8 reach {reached['one holder', '8']} on the other ten" in said
