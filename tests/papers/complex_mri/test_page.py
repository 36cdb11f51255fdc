"""The page of Riess et al. shows what its kept tables hold."""

from __future__ import annotations

import pandas as pd
import pytest
from paper_pages import PAPERS, kept, line_of, table_lines, text_of

PAGE = "complex_mri/README.md"
TEXT = text_of(PAGE)
CELLS = kept("complex_mri", "table", "network", "arm", "epsilon")
SHORT = kept("complex_mri", "short/table1", "network", "epsilon")
IMAGE = kept("complex_mri", "image/table1", "epsilon")
THREE = kept("complex_mri", "activations/table1", "network", "epsilon")
LARGE = kept("complex_mri", "network/table1", "network", "epsilon")
RATES = kept("complex_mri", "rates/table1", "arm", "epsilon")
PRINTED = pd.read_csv(PAPERS / "complex_mri/printed.csv", comment="#", dtype={"epsilon": str}).set_index(
    ["arm", "epsilon"]
)
ARMS = {"federated": "federated", "one holder": "central"}
ACTIVATIONS = {"cardioid": "cardioid", "ModReLU": "modrelu", "CReLU": "crelu"}
NOISE = "1.8976"
SHORTER = ("1", "8", "inf")
"""Epsilons of the tables with three columns."""


def spread(row: pd.Series) -> str:
    return f"{row['mean']:.1f}" + ("" if pd.isna(row["std"]) else f" ± {row['std']:.1f}")


def with_interval(row: pd.Series) -> str:
    return f"{row['mean']:.1f} ({row['ci_low']:.1f} to {row['ci_high']:.1f})"


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("epsilons", [("1", "8"), ("3", "5", "10"), ("inf",)])
def test_the_first_table_shows_what_is_printed_and_kept(arm, epsilons):
    line = line_of(PAGE, f"Table 1, {arm}, ε = {', '.join(epsilons).replace('inf', '∞')}")
    assert line[1] == ", ".join(f"{PRINTED.loc[(ARMS[arm], epsilon), 'printed']:.2f}" for epsilon in epsilons) + " %"
    ours = ", ".join(spread(CELLS.loc[("pooled", ARMS[arm], epsilon)]) for epsilon in epsilons)
    assert line[3].removesuffix(", clipped") == f"{ours} %"
    if epsilons == ("inf",):
        lower = PRINTED.loc[(ARMS[arm], "inf"), "printed"] - CELLS.loc[("pooled", ARMS[arm], "inf"), "mean"]
        assert line[4] == f"{lower:.0f} points lower"


@pytest.mark.parametrize(("name", "arm"), ARMS.items())
def test_printed_lines_of_other_tables_are_those_of_the_paper(name, arm):
    lines = [line for line in table_lines(PAGE) if line[0] == f"{name}, the paper, printed"]
    printed = [f"{value:.2f}" for value in PRINTED.loc[arm, "printed"]]
    few = [f"{PRINTED.loc[(arm, epsilon), 'printed']:.2f}" for epsilon in SHORTER]
    assert [line[1:7] for line in lines] == [printed, *[few] * (len(lines) - 1)]
    assert lines


def test_the_first_table_shows_the_runs_that_count_images():
    printed = [f"{PRINTED.loc[('federated', epsilon), 'printed']:.2f}" for epsilon in ("1", "8", "inf")]
    line = line_of(PAGE, "per image, ε = 1, 8, ∞, one holder")
    assert line[1] == ", ".join(printed) + " %"
    assert line[3] == ", ".join(f"{mean:.1f}" for mean in IMAGE["mean"]) + " %"
    run = CELLS.loc[("per_image", "federated", "8")]
    ours = [f"{printed[1]} %", f"{run['epsilon_per_patient']:,.0f}", f"{run['mean']:.1f} %"]
    assert line_of(PAGE, "ε = 8 per image, federated, 917 rounds")[1:4] == ours


def test_the_lead_of_one_holder_is_that_of_the_table():
    means = CELLS.loc["pooled"]["mean"]
    leads = [means["central", epsilon] - means["federated", epsilon] for epsilon in ("1", "3", "5", "8", "10")]
    assert f"One holder scores {min(leads):.0f} to {max(leads):.0f} points higher at ε = 1 to 10." in TEXT
    printed = (PRINTED.loc["central", "printed"] - PRINTED.loc["federated", "printed"]).round(2)
    least, most = min(printed), max(printed) + 1e-9  # 1.55 is rounded up
    assert line_of(PAGE, "Table 1, federated below one holder")[1] == f"{least:.1f} to {most:.1f} points"
    leads.append(means["central", "inf"] - means["federated", "inf"])
    assert line_of(PAGE, "Table 1, federated below one holder")[3] == f"{min(leads):.0f} to {max(leads):.0f} points"


def test_the_cost_of_noise_is_that_of_the_tables():
    means = CELLS.loc[("pooled", "federated")]["mean"]
    eight, one = (means["inf"] - means[epsilon] for epsilon in ("8", "1"))
    assert f"Noise costs the small network {eight:.0f} points at ε = 8 and {one:.0f} at ε = 1, federated" in TEXT
    printed = PRINTED.loc["federated", "printed"]
    assert [round(printed["inf"] - printed[epsilon]) for epsilon in ("8", "1")] == [1, 8]
    one, eight = (IMAGE.loc["inf", "mean"] - IMAGE.loc[epsilon, "mean"] for epsilon in ("0.27471", "36.376"))
    assert f"The noise of ε = 1 costs {one:.0f} points here and 8 in print;" in TEXT
    assert f"that of ε = 8 costs {eight:.0f} here and 1 in print." in TEXT
    runs = [CELLS.loc[run]["mean"] for run in (("pooled", "federated"), ("faster", "federated"), ("pooled", "central"))]
    costs = [means["inf"] - means["8"] for means in (*runs, *(RATES.loc[arm]["mean"] for arm in ARMS.values()))]
    said = f"noise costs {min(costs):.0f} to {max(costs):.0f} points"
    assert said in TEXT
    assert said in text_of("README.md")


@pytest.mark.parametrize("epsilon", ["3", "5", "10", "unclipped"])
@pytest.mark.parametrize(("label", "arm"), [("federated", "federated"), ("one holder of all patients", "central")])
def test_the_grid_has_the_cells_with_one_seed(label, arm, epsilon):
    assert spread(CELLS.loc[("pooled", arm, epsilon)]) in line_of(PAGE, label)


def test_seeds_that_the_text_names_are_those_of_the_table():
    scores = kept("complex_mri", "seeds", "scenario", "network", "arm", "epsilon", "seed")["score"]
    run = scores["paper_small", "pooled", "federated", "8", "0"]
    image = scores["paper_small", "per_image", "federated", "8", "0"]
    assert f"With seed 0 it reaches {image:.1f} % at ε = 8, and the run per patient {run:.1f} %." in TEXT
    holder = scores["paper_small", "pooled", "central", "8"]
    said = f"one seed reaches {SHORT.loc[('pooled', NOISE), 'mean']:.1f} %; two seeds of 10,083 rounds reach"
    assert f"{said} {holder['0']:.1f} and {holder['1']:.1f} %" in TEXT
    ranges = []
    for network in ("conjmish", "crelu"):
        seeds = scores["paper_activations", network, "central", NOISE]
        assert len(seeds) == 3
        ranges.append(f"({seeds.min():.1f} to {seeds.max():.1f})")
    assert f"the seeds of ConjMish {ranges[0]} overlap with those of CReLU {ranges[1]}" in TEXT


def test_runs_per_image_have_the_kept_cells_and_epsilons():
    assert line_of(PAGE, "one holder, 73,333 rounds")[1:] == [with_interval(row) for _, row in IMAGE.iterrows()]
    one, eight = IMAGE.loc["0.27471"], IMAGE.loc["36.376"]
    assert f"has {one['epsilon_stated']:.3f} and {eight['epsilon_stated']:.1f} per image, and 86.81 and 7,625" in TEXT
    assert 86.80 < one["epsilon_per_patient"] <= 86.81
    assert 7624 < eight["epsilon_per_patient"] <= 7625


def test_the_lead_of_conjmish_is_that_of_the_table():
    leads = {}
    for epsilon in (NOISE, "inf"):
        best = THREE.loc[("conjmish", epsilon), "mean"]
        leads[epsilon] = [best - THREE.loc[(network, epsilon), "mean"] for network in ACTIVATIONS.values()]
    noisy, free = (", ".join(f"{lead:.1f}" for lead in leads[epsilon]) for epsilon in (NOISE, "inf"))
    assert line_of(PAGE, "ConjMish above cardioid, ModReLU, CReLU")[3] == f"{noisy} at ε = 8; {free} at ∞"
    first, second = (f"{min(leads[epsilon]):.1f} to {max(leads[epsilon]):.1f}" for epsilon in (NOISE, "inf"))
    assert f"it leads by {first} points with the noise of ε = 8 and by {second} without" in TEXT
    for name, network in {"ConjMish": "conjmish", **ACTIVATIONS}.items():
        cells = [spread(THREE.loc[(network, epsilon)]) for epsilon in (NOISE, "inf")]
        assert f"| {name} | {' | '.join(cells)} |" in TEXT


def test_activations_of_the_earlier_commit_are_those_of_the_table():
    ahead = [SHORT.loc[(name, NOISE), "mean"] - SHORT.loc[("faster", NOISE), "mean"] for name in ("cardioid", "crelu")]
    assert f"cardioid and CReLU are {ahead[0]:.1f} and {ahead[1]:.1f} points ahead" in TEXT
    split, conjugate = (SHORT.loc[name]["mean"] for name in ("split_mish", "faster"))
    apart = [abs(split[noise] - conjugate[noise]) for noise in (NOISE, "inf")]
    assert f"differs from it there by {apart[0]:.1f} and {apart[1]:.1f} points" in TEXT


def test_epsilons_of_the_central_limit_are_those_of_the_page_on_printed_ones():
    docs = (PAPERS.parent / "docs/printed.md").read_text().splitlines()
    limits = {cells[1].strip(): cells[3].strip() for line in docs if len(cells := line.split("|")) == 6}
    true = line_of(PAGE, "noise of ε = 1, 3, 5, 8, 10")[2]
    assert true == f"{limits['1']} at 1, {limits['10']} at 10"


def test_the_time_of_the_paper_s_network_is_that_of_the_table():
    hours = kept("complex_mri", "time").groupby("scenario")["hours"].sum()["paper"]
    assert f"`paper` takes {hours:.0f} core hours, {hours / 48:.1f} days on two quiet cores" in TEXT


def test_the_paper_s_network_costs_what_its_table_says():
    lines = {"0.0002": LARGE.loc["paper"], "0.001": LARGE.loc["faster"], "0.006": SHORT.loc["fastest"]}
    cost = {}
    for rate, cells in lines.items():
        name = "the small network" if rate == "0.006" else "the paper's network"
        shown = [with_interval(cells.loc[epsilon]) for epsilon in ("0.24", NOISE, "inf")]
        assert line_of(PAGE, f"{name}, rate {rate}")[1:] == shown
        cost[rate] = [round(cells.loc["inf", "mean"] - cells.loc[epsilon, "mean"]) for epsilon in (NOISE, "0.24")]
    (eight, one), (eight_faster, one_faster), (eight_small, one_small) = cost.values()
    assert f"costs {eight} points at a rate of 0.0002 and {eight_faster} at 0.001 ({eight_small} in the" in TEXT
    assert f"that of ε = 1 costs {one} and {one_faster} ({one_small})" in TEXT
    ours = ", ".join(f"{LARGE.loc[('faster', epsilon), 'mean']:.1f}" for epsilon in ("0.24", NOISE, "inf"))
    assert line_of(PAGE, "the paper's network, noise of ε = 1, 8, ∞, one holder")[3] == f"{ours} %"


def test_rates_that_suit_the_patients_reach_what_their_table_says():
    rows = {"federated": "thirty times the rate, federated", "central": "ten times the rate, one holder"}
    lines = {"federated": "federated, 917 rounds, rate 0.006", "central": "one holder, 10,083 rounds, rate 0.002"}
    cost = {}
    for arm, row in rows.items():
        cells = RATES.loc[arm]
        assert line_of(PAGE, lines[arm])[1:] == [with_interval(cells.loc[epsilon]) for epsilon in SHORTER]
        printed = ", ".join(f"{PRINTED.loc[(arm, epsilon), 'printed']:.2f}" for epsilon in SHORTER)
        ours = ", ".join(f"{cells.loc[epsilon, 'mean']:.1f}" for epsilon in SHORTER)
        assert line_of(PAGE, f"{row}, ε = 1, 8, ∞")[1:4:2] == [f"{printed} %", f"{ours} %"]
        assert cells.loc["inf", "ci_low"] < PRINTED.loc[(arm, "inf"), "printed"] < cells.loc["inf", "ci_high"]
        cost[arm] = [round(cells.loc["inf", "mean"] - cells.loc[epsilon, "mean"]) for epsilon in ("8", "1")]
        free = PRINTED.loc[(arm, "inf"), "printed"]
        assert [round(free - PRINTED.loc[(arm, epsilon), "printed"]) for epsilon in ("8", "1")] == [1, 8]
    (eight, one), (eight_of_one, one_of_one) = cost.values()
    assert f"{eight} points at ε = 8 and {one} at ε = 1, and the one holder {eight_of_one} and {one_of_one}" in TEXT
    slower = CELLS.loc[("faster", "federated")]["mean"]
    one, eight, free = (round(RATES.loc[("federated", epsilon), "mean"] - slower[epsilon]) for epsilon in SHORTER)
    assert eight == 0
    assert f"adds {free} points without noise and none at ε = 8, and costs {-one} at ε = 1" in TEXT
