"""What is kept of results says how it was made, and that is what scenarios, programs and history say too."""

from __future__ import annotations

import csv
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from origins import read_origin

from papers.experiments import Experiment, declared_by
from papers.join import declared_joins, scenarios_of

if TYPE_CHECKING:
    from collections.abc import Iterable

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
ATTACKS = {"audit", "inversion", "candidates", "membership"}
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
    gap = "the gap between the public head and a head trained without noise"
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


def frame_of(name: str, **where: object) -> pd.DataFrame:
    """Return the rows of a stored table whose columns have these values."""
    kept = pd.read_csv(ROOT / f"docs/results/{name}.csv", comment="#")
    for column, value in where.items():
        kept = kept[kept[column].isin(value if isinstance(value, list) else [value])]
    assert len(kept)
    return kept


def cells(values: Iterable[float], form: str = ".1f") -> str:
    """Return numbers as neighbouring cells of a table."""
    return " | ".join(f"{value:{form}}" for value in values)


GAIN = "{both gain:+.1f} ({both low:+.1f} to {both high:+.1f}) |"
OF_PATIENTS = {
    "trained on": "no atlas (the default)",
    "measured on": ["no atlas (the default)", "drawn", "heavy lesions"],
}
ON_PEOPLE = {"shown": ["skull and scalp", "crude mask of the brain"]}
BY_SLICE = "{slice %:.1f} ({slice low:.0f} to {slice high:.0f})"
SHOWN = [
    (
        "pretraining",
        "both_ways",
        {**OF_PATIENTS, "classified": "a slice together", "epsilon": 1},
        "| {public:.1f} | " + GAIN,
    ),
    ("pretraining", "both_ways", {**OF_PATIENTS, "classified": "a slice together", "epsilon": 8}, GAIN),
    (
        "real_heads",
        "real_heads",
        {**ON_PEOPLE, "head": ["public", "one holder"], "epsilon": ["none", "1", "8", "inf"]},
        BY_SLICE,
    ),
    ("real_heads", "real_heads", {**ON_PEOPLE, "head": "public"}, "{volumes right:.0f}"),
    ("real_heads", "real_heads", {**ON_PEOPLE, "head": "five hospitals, masked sums", "epsilon": "8"}, BY_SLICE),
    (
        "real_heads",
        "real_heads",
        {**ON_PEOPLE, "head": "five hospitals, masked sums", "epsilon": "1"},
        "{gain:.1f} ({gain low:.1f} to {gain high:.1f})",
    ),
    (
        "real_heads",
        "real_heads",
        {**ON_PEOPLE, "head": "of the default's cohort"},
        "{gain:.1f} ({gain low:+.1f} to {gain high:+.1f})",
    ),
    ("performance", "benchmarks/step", {}, "| {ratio:.3f} | {ratio_low:.3f} to {ratio_high:.3f} |"),
    (
        "performance",
        "benchmarks/ordinary",
        {},
        "| {network} | {weights:,} | {one pass:.1f} | {one pass, exact noise:.1f} | {one after the other:.1f} "
        "| {added to a person's pass by exact noise, ms:.2f} |",
    ),
    (
        "membership",
        "attacks/membership",
        {"fpr": [0.1, 0.09595959595959595]},
        "| {accuracy_members:.1%} | {accuracy_others:.1%} | {tpr:.1%} | {fpr_upper:.1%} | {lower:.1%} "
        "| {allowed_reader:.1%} | {allowed_server:.1%} |",
    ),
]


@pytest.mark.parametrize(("page", "name", "where", "words"), SHOWN)
def test_a_page_shows_the_rows_of_its_table(page, name, where, words):
    kept = frame_of(name, **where)
    said = words_of(f"docs/{page}.md").replace("−", "-").replace(" %", "%")
    assert [text for row in kept.to_dict("records") if (text := words.format(**row)) not in said] == []


def test_the_page_on_people_shows_the_closed_gap():
    heads = frame_of("real_heads").set_index(["shown", "head", "epsilon"])
    closed = []
    for shown in ON_PEOPLE["shown"]:
        public, private, free = (
            heads.loc[(shown, *head)] for head in (("public", "none"), ("one holder", "8"), ("one holder", "inf"))
        )
        for accuracy in ("image %", "slice %"):
            gap = free[accuracy] - public[accuracy]
            closed.append(f"{100 * (private[accuracy] - public[accuracy]) / gap:.0f}")
    image, by_slice, masked, masked_slice = closed
    said = (
        f"closes {image} % of it by image and {by_slice} % by slice on whole heads, and {masked} and {masked_slice} %"
    )
    assert said in words_of("docs/real_heads.md")


def test_the_page_on_settings_shows_the_recorded_searches():
    said = words_of("docs/settings.md").replace("−", "-")
    chosen = frame_of("head_selection", rounds=20, rate=1, clip=0.3, epsilon="1").set_index("components")["mean"]
    assert ", ".join(f"{chosen[size]:.1f}" for size in (2, 4, 8, 16)) + f" and {chosen[64]:.1f} %" in said
    tapers = frame_of("taper", components=64, rounds=20).set_index("epsilon")
    tried = tapers.loc["1"].set_index(["signal", "power", "rate"])["mean"]
    order = [(0.009, 3, 30), (0.0045, 3, 30), (0.018, 3, 30), (0.009, 2, 30), (0.009, 4, 30), (0.009, 3, 10)]
    assert f"| {cells(tried[key] for key in order)} |" in said
    assert f"all reach {tapers.loc['8']['mean'].min():.1f} to {tapers.loc['8']['mean'].max():.1f} %" in said
    gains = frame_of("keen", classified="a slice together").set_index(["where", "epsilon"])
    for where, patients in (("own", "of the consortium"), ("others", "of another one")):
        pairs = (
            f"{gains.loc[where, 1][rule]:+.1f}, {gains.loc[where, 8][rule]:+.1f}"
            for rule in ("alone", "both, 10", "both, 1e+06")
        )
        assert f"| {patients} | {' | '.join(pairs)} |" in said


def test_the_page_of_further_experiments_shows_its_tables():
    said = words_of("docs/private_head.md").replace("−", "-")
    pairs = frame_of("phantom_full_differences").set_index("what")
    one, eight, best = (
        pairs.loc[pairs.index.str.startswith(f"goal: at most {start}")].iloc[0] for start in ("2", "0.5", "3")
    )
    for row, points in ((one, " points"), (eight, "")):
        lost = f"{-row.difference:.2f}{points} ({-row.seeds_high:.2f} to {-row.seeds_low:.2f})"
        assert f"{lost} at ε = {1 if points else 8}" in said
    seeds, patients = (
        f"{-best[f'{over}_high']:.2f} to {-best[f'{over}_low']:.2f} over" for over in ("seeds", "patients")
    )
    assert f"{-best.difference:.1f} points above the head at ε = 1 ({seeds} five seeds, {patients} patients)" in said
    for epsilon, hospitals in frame_of("uneven/per_node").groupby("epsilon"):
        if epsilon < math.inf:
            assert f"| {cells((math.ceil(100 * value) / 100 for value in hospitals.epsilon_node), '.2f')} |" in said
    reached = frame_of("uneven/table1", network="complex", arm="federated")
    accuracies = [f"{row.mean:.1f} ± {row.std:.1f} %" for row in reached[["mean", "std"]].itertuples()]
    assert all(accuracy in said for accuracy in accuracies)


def test_the_page_on_cost_shows_growth_and_masks():
    said = words_of("docs/performance.md")
    growth = frame_of("benchmarks/growth").drop_duplicates("axis").set_index("axis")
    assert f"(exponents {growth.time_exponent.min():.2f} to {growth.time_exponent.max():.2f}" in said
    assert f"{growth.last_time_exponent.min():.2f} to {growth.last_time_exponent.max():.2f}" in said
    sums = frame_of("benchmarks/sums", numbers=187272)
    checks, masks = (" / ".join(f"{ms:.0f}" for ms in sums[name]) for name in ("check_values_ms", "masks_ms"))
    assert f"needs {checks} ms of processor time to check the signed values and {masks} ms" in said
    rules = (ROOT / "docs/results/benchmarks/rules.md").read_text()
    first, last = re.search(r"there (\d+) s after", rules)[1], re.search(r"after (\d+) s\.", rules)[1]
    assert f"first table {first} s after the start of the first job, and has everything after {last} s" in said


def test_the_page_on_inversion_shows_its_tables():
    said = words_of("docs/inversion.md")
    rebuilt = frame_of("attacks/inversion").groupby(["message", "network", "attack", "epsilon"])["ssim"]
    images = rebuilt.agg(["mean", "min", "max"]).reset_index()
    for row in images[(images.attack != "distance (DLG)") & ~images.message.str.startswith("mean of")].itertuples():
        assert f"{row.mean:.2f}" in said
        assert (
            row.max - row.min < 0.015 or row.epsilon == 1 or f"{row.mean:.2f} ({row.min:.2f} to {row.max:.2f})" in said
        )
    named = frame_of("attacks/candidates", candidates=10).sort_values("epsilon").groupby("network")
    for network, rates in named:
        assert f"(`{network}`) | {cells(rates.named)} |" in said
        assert f"| {cells(rates.bound)} |" in said


def test_the_page_on_the_audit_shows_its_power():
    said = words_of("docs/audit.md")
    audits = [
        line.split(" | ")
        for line in (ROOT / "docs/results/default/audit.md").read_text().splitlines()
        if "stands" in line
    ]
    trials = {name.strip("| "): int(sides.split(" + ")[0]) for name, *_, sides, _ in audits}
    once, half = trials["one round, B = 1, seeded noise"], trials["one round, p = 0.5, B = 1, seeded noise"]
    assert len(audits) == 12
    assert f"the twelve audits of the default, that takes {once} trials on each side for one round and {half}" in said
    low = [(name, power) for name, _, power, *_ in audits if "training" in name and float(power) < 0.98]
    assert len(low) == 3
    for name, power in low:
        assert f"{power} at {re.search('ε = [0-9.]+', name)[0]}" in said
