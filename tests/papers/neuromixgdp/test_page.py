"""The page of Li, Cao and Yao, and that of releases, show what the kept tables hold."""

from __future__ import annotations

import math

import pandas as pd
from paper_pages import kept, line_of, table_lines, text_of

from papers.neuromixgdp.compare_mnist import true_epsilon

PAPER = "neuromixgdp"
PAGE = "neuromixgdp/README.md"
TEXT = text_of(PAGE)
GUIDE = text_of("../docs/feature_release.md")
ACCOUNTING = kept(PAPER, "accounting").set_index("part")
REGIMES = kept(PAPER, "regimes", "classes", "people", "holders", "method")["mean"]
MNIST = kept(PAPER, "mnist", "data", "kind", "method", "epsilon")
LONG = kept(PAPER, "mnist_long", "kind", "method")


def missing(phrases: list[str], text: str = TEXT) -> list[str]:
    """Return the phrases that a page lacks."""
    return [phrase for phrase in phrases if phrase not in text]


def spread(row: pd.Series) -> str:
    return f"{row['mean']:.2f}" + ("" if pd.isna(row["std"]) else f" ± {row['std']:.2f}")


def test_the_first_table_has_the_true_epsilons():
    poisson = ACCOUNTING.loc["poisson"].set_index("printed_epsilon")
    hierarchical = ACCOUNTING.loc["hierarchical"]
    at_one = hierarchical[hierarchical["printed_epsilon"] == 1]["true_epsilon"]
    worse = hierarchical["true_epsilon"] / hierarchical["printed_epsilon"]
    noise = ACCOUNTING.loc["row_noise"].set_index("mixed").loc[64]
    lines = ACCOUNTING.loc["convergence"]["true_epsilon"]
    phrases = [
        f"ε = 2 | {poisson['true_epsilon'][2]:.2f} |",
        f"ε = 1 | {at_one.min():.2f} to {at_one.max():.2f} |",
        f"costs {worse.min():.1f} to {worse.max():.1f} times the ε",
        f"The true ε is {worse.min():.1f} to {worse.max():.1f} times the printed one",
        f"ε falls {lines.max():.2f} to {lines.min():.2f} |",
        f"uniform {100 * noise['uniform_row_noise'] / noise['printed_row_noise'] - 100:.0f} % more",
        f"Rényi bounds {100 * noise['renyi_row_noise'] / noise['true_row_noise'] - 100:.0f} % more",
        f"{poisson['theorem_e5_misprinted'][2]:.2f} | {poisson['theorem_e5_epsilon'][2]:.2f} | not used",
        f"at a printed ε of 8, the true one is {poisson['true_epsilon'][8]:.2f}",
    ]
    assert not missing(phrases)
    claimed = hierarchical.set_index(["class_rate", "printed_epsilon"])["true_epsilon"]
    for column, (epsilon, true) in enumerate(poisson["true_epsilon"].loc[[0.5, 1, 2, 4, 8]].items(), start=1):
        assert line_of(PAGE, "true ε of that noise")[column] == f"{true:.3f}"
        for share in (0.3, 0.1, 0.03):
            of = claimed[share, epsilon]
            name = f"true ε, p = {share:g}" + (" (3 of 100 classes)" if share == 0.03 else "")
            assert line_of(PAGE, name)[column] == f"{of:.{2 if of < 10 else 1}f}"
    assert f"89.82 | {true_epsilon(1.0, 1.0):.2f} | " in TEXT
    assert f"92.71 | {true_epsilon(1.0, 0.3):.2f} | " in TEXT
    assert f"96.17 | {true_epsilon(10.0, 1.0):.1f}, {true_epsilon(10.0, 0.3):.1f} | " in TEXT


def test_the_attack_refutes_the_claim():
    attack = ACCOUNTING.loc["attack"].set_index("class_rate")
    few, more = attack.loc[0.03], attack.loc[0.1]
    phrases = [
        f"{few['seen_variation']:.2f} for p = 0.03 and {more['seen_variation']:.2f} for p = 0.1",
        f"the claim allows {few['printed_variation']:.2f}",
        f"it exceeds {few['seen_variation_lower']:.2f} and {more['seen_variation_lower']:.2f}",
    ]
    assert not missing(phrases)
    assert ((attack["seen_variation"] - attack["safe_variation"]).abs() < 0.01).all()


def test_the_best_degree_is_that_of_the_theorem():
    errors = ACCOUNTING.loc["regression"].set_index("ratio")[["error_mu_0.333", "error_mu_1", "error_mu_3"]]
    assert f"at {errors.idxmin().min():g} to {errors.idxmin().max():g} times this degree" in TEXT
    degrees = ACCOUNTING.loc["best_degrees"]
    degrees = degrees[degrees["records"] == 50_000].set_index("printed_epsilon")["best_mixed"]
    assert f"about {degrees[1]:.0f} records per row at ε = 1 and {degrees[8]:.0f} at ε = 8" in TEXT


def test_table_9_and_10_at_true_epsilon():
    rows = kept(PAPER, "cifar100")
    rows = rows[rows["method"] == "rows, hierarchical"]
    cifar, large = rows[rows["data"] == "CIFAR-100"], rows[rows["data"] == "ImageNet"]
    ahead = cifar[cifar["accuracy"] > cifar["descent"]].groupby("class_rate")["printed"].apply(list)
    assert ahead[0.3] == [0.1, 0.2, 0.5, 1, 8]
    assert ahead[0.1] == [0.1, 0.2, 8]
    assert ahead[0.03] == [8]
    first = cifar[cifar["printed"] == 0.1]
    worse = large["true"] / large["printed"]
    behind = large[large["accuracy"] < large["descent"]]
    assert behind["printed"].tolist() == [0.1, 0.2, 0.5]
    names = [f"{value:.1f}" for value in behind["accuracy"]]
    phrases = [
        f"{first['true'].min():.2f} to {first['true'].max():.2f} | descent {first['descent'].min():.1f} to "
        f"{first['descent'].max():.1f} |",
        f"{worse.min():.0f} to {worse.max():.0f} times the printed one",
        f"({behind['descent'].iloc[0]:.1f} % against {names[0]}, {names[1]} and {names[2]} %)",
        f"{large['true'].iloc[0]:.2f} | descent {large['descent'].iloc[0]:.1f} | descent leads",
    ]
    assert not missing(phrases)


def test_heads_on_rows_reach_what_the_tables_say():
    rows = [
        " | ".join(spread(MNIST.loc[(data, "encoder", method, "1")]) for data in ("mnist", "fashion"))
        for method in ("rows", "open_rows", "means", "moments", "merf", "gradients")
    ]
    best = MNIST.loc["fashion", "encoder"].xs("1", level="epsilon")["mean"].drop("gradients")
    assert set(best.nlargest(2).index) == {"rows", "open_rows"}
    assert f"rows of either sampling, have {best['open_rows']:.2f} and {best['rows']:.2f} %" in TEXT
    for kind, name in (
        ("scattering", "scattering (3,969)"),
        ("axes", "scattering on 150 public axes"),
        ("pixels", "pixels (DPMix)"),
    ):
        of = MNIST.loc["mnist", kind]
        cells = [spread(of.loc[(method, epsilon)]) for epsilon in ("1", "10") for method in ("rows", "open_rows")]
        assert line_of(PAGE, f"{name}, 20,000")[1:] == cells
        if kind != "axes":
            assert line_of(PAGE, f"{name}, 60,000")[1:3] == [
                spread(LONG.loc[(kind, m)]) for m in ("long_rows", "long_open_rows")
            ]
    assert not missing(rows)
    long = [
        spread(LONG.loc[(kind, name)]) for kind in ("scattering", "pixels") for name in ("long_rows", "long_open_rows")
    ]
    scattering = MNIST.loc["mnist", "scattering"]["mean"]
    merf = MNIST.loc[("mnist", "encoder", "merf", "10"), "mean"]
    ten = f"{scattering['rows', '10']:.2f}, {scattering['open_rows', '10']:.2f} at 10 |"
    assert not missing(
        [f"{long[0]} at 1 |", f"{long[1]} at 1 |", ten, f"1.01 | {long[2]} |", f"| {long[3]} | PS leads"]
    )
    assert f"| 68.0 | | {merf:.2f} |" in TEXT
    assert LONG.loc[("pixels", "long_rows"), "mean"] > LONG.loc[("pixels", "long_open_rows"), "mean"]
    ahead = MNIST.loc["mnist"]["mean"].unstack("method").loc[["axes", "pixels"]]
    assert (ahead["rows"] > ahead["open_rows"]).all()
    assert f"at ε = 10 by up to {(ahead['rows'] - ahead['open_rows']).max():.1f} points" in TEXT
    pixels = MNIST.loc["mnist", "pixels"]["mean"]
    assert f"20,000 rows of pixels: {pixels['rows', '10']:.1f} %, and {pixels['open_rows', '10']:.1f} %" in GUIDE


def test_the_table_of_regimes_has_the_kept_cells():
    methods = ("gradients", "means", "open_rows", "plain_open_rows", "rows", "plain_rows")
    start = table_lines(PAGE).index(next(line for line in table_lines(PAGE) if line[0] == "classes, people")) + 2
    lines = 0
    for line in table_lines(PAGE)[start:]:
        classes, _, people = line[0].partition(", ")
        if not classes.isdigit():
            break
        of = REGIMES[int(classes), int(people.replace(",", "")), 1 if line[1] == "one" else int(line[1])]
        assert line[2:] == ["none" if math.isnan(of[m]) else f"{of[m]:.1f}" for m in methods], line
        lines += 1
    assert lines == 8


def test_sentences_on_regimes_follow_from_the_table():
    cells = REGIMES.unstack("method")
    one, many = cells.xs(1, level="holders"), cells.xs(11, level="holders")
    large = one[one.index.get_level_values("people") >= 4000]
    assert (large["gradients"] - large["open_rows"]).max() < 0.45
    assert "within 0.4 points of private descent" in TEXT
    assert (one["gradients"] - one["open_rows"]).loc[:, 1000].min() > 0.45
    few, subtracted = one.xs(1000, level="people"), "Subtracting the noise adds {:.0f} to {:.0f} points to Poisson rows"
    gains, losses = few["rows"] - few["plain_rows"], few["plain_open_rows"] - few["open_rows"]
    large_gains = pd.concat((large["rows"] - large["plain_rows"], large["open_rows"] - large["plain_open_rows"]))
    best = cells.loc[10, 1000, 1].drop("gradients")
    assert best.idxmax() == "plain_open_rows"
    small = many.xs(1000, level="people").drop(columns="gradients")
    assert 47 < small.max().max() < 48
    phrases = [
        subtracted.format(gains.min(), gains.max()),
        f"costs hierarchical ones {losses.min():.1f} to {losses.max():.1f}",
        f"it costs at most {-large_gains.min():.1f} points and adds up to {large_gains.max():.1f}",
        f"descent has {cells['gradients'][10, 1000, 1]:.1f} %, and the best release, hierarchical rows with the plain "
        f"head, {best.max():.1f} %",
        f"{few['open_rows'][10]:.1f} against {few['means'][10]:.1f} % for ten classes",
        f"{few['open_rows'][20]:.1f} against {few['means'][20]:.1f} % for twenty",
        f"({one['means'][20, 4000]:.1f} against {one['gradients'][20, 4000]:.1f} %)",
    ]
    assert not missing(phrases)
    guide = [
        f"{best.max():.1f} instead of {few['open_rows'][10]:.1f} % with 1000 digits",
        f"where it lost {gains[10]:.0f} points with",
        f"ten classes: {few['open_rows'][10]:.1f} %, and {few['rows'][10]:.1f} % with --active 1".replace(
            "--active 1", "`--active 1`"
        ),
        f"they reach {few['open_rows'][20]:.1f} instead of {few['gradients'][20]:.1f} %",
        f"{MNIST.loc[('fashion', 'encoder', 'open_rows', '1'), 'mean']:.1f} instead of "
        f"{MNIST.loc[('fashion', 'encoder', 'gradients', '1'), 'mean']:.1f} %",
    ]
    assert not missing(guide, GUIDE)


def test_rows_on_k_space_have_the_kept_accuracies():
    heads = kept(PAPER, "table1", "network", "arm", "epsilon")
    names = {
        "released rows": "rows",
        "noisy class means, released once": "class_means",
        "gradients (ζ-DP-SGD)": "pretrained",
    }
    for name, network in names.items():
        cells = [heads.loc[(network, arm, epsilon)] for arm in ("central", "federated") for epsilon in ("1", "8")]
        row = [f"{cell['mean']:.1f} ± {cell['std']:.1f}" for cell in cells]
        assert line_of("../docs/feature_release.md", name)[1:] == row
    assert f"less accurate ({heads.loc[('rows', 'central', 'inf'), 'mean']:.1f} %)" in GUIDE
    patients = kept(PAPER, "patients", "patients", "network", "arm", "epsilon")["mean"]
    pairs = [
        (heads.loc[("rows", "central", "1"), "mean"], heads.loc[("class_means", "central", "1"), "mean"]),
        (patients[1936, "rows", "central", "1"], patients[1936, "class_means", "central", "1"]),
        (patients[121, "rows", "central", "1"], patients[121, "pretrained", "central", "1"]),
    ]
    assert not missing([f"({rows:.1f} against {other:.1f} %" for rows, other in pairs])


def test_classes_of_unequal_size_need_their_shares():
    shares = kept(PAPER, "shares", "method", "head")
    names = ["hierarchical, equal classes assumed", "hierarchical, shares declared", "Poisson, noisy"]
    for name in names:
        cells = [shares.loc[(name.removesuffix(", noisy"), head)] for head in ("subtracted", "plain")]
        row = [f"{cell[column] + 1e-9:.1f}" for cell in cells for column in ("accuracy", "class_mean")]
        assert line_of(PAGE, name)[1:] == row
    accuracy = shares["accuracy"].xs("subtracted", level="head")
    assert f"shares of the classes add {accuracy[names[1]] - accuracy[names[0]]:.0f} points" in TEXT
    assert f"40 to 0.4 %: {accuracy[names[1]]:.1f} %, and {accuracy['Poisson']:.1f} %" in GUIDE
    assert f"only {accuracy[names[0]]:.1f} % with" in GUIDE


def test_attacks_prove_what_the_tables_say():
    attacks = kept(PAPER, "membership")
    rows = attacks[attacks["attacked"] == "rows"]
    assert (rows["proved"] <= rows["claimed"]).all()
    for row in rows[rows["claimed"] > 7].itertuples():
        assert line_of(PAGE, row.how)[1:] == [f"{row.claimed:.2f}", f"{row.proved:.2f}", f"{row.seen:.2f}"]
    proved = rows[rows["claimed"] > 7]["proved"]
    heads = attacks[attacks["attacked"] == "heads"]["proved"].max()
    phrases = [
        f"proves {proved.min():.2f} to {proved.max():.2f} of 8",
        f"that of hierarchical rows is {rows[rows['claimed'] < 2]['seen'].max():.2f}",
        f"an attack on its score proves {heads:.2f}",
    ]
    assert not missing(phrases)
    ranks = kept(PAPER, "inversion", "features", "degree", "epsilon")["rank"]
    for features in ("pixels", "encoder"):
        for degree in (1, 64):
            cells = [f"{ranks[features, degree, epsilon]:.1f}" for epsilon in ("inf", "8", "1")]
            assert line_of(PAGE, f"{features}, {degree}")[1:] == cells


def test_measures_of_features_are_the_kept_ones():
    measures = kept(PAPER, "measures")
    features = measures.dropna(subset="features").set_index("features")
    weights = measures[measures["part"] == "weights"].set_index(["concentration", "most"])["mean"]
    phrases = [
        f"{features['collapse']['pixels']:.2f}, {features['collapse']['scattering']:.2f} (5000 images)",
        f"{features['distance'].min():.2f} to {features['distance'].max():.2f} (MNIST)",
        f"{weights[4, 1] + 1e-9:.1f}, equal weights {weights[math.inf, 1]:.1f}",
    ]
    assert not missing(phrases)


def test_the_sweep_says_which_settings_are_best():
    sweep = kept(PAPER, "sweep", "setting", "value")["mean"]
    assert sweep["degree"].nlargest(2).index.sort_values().tolist() == [16, 64]
    assert sweep["balance"].idxmax() == 2
    some, every = sweep["active"].drop(1.0), sweep["active"][1.0]
    more = some - every
    assert (
        f"it lies within {some.max() - some.min():.1f} points, {more.min():.0f} to {more.max():.0f} points above"
        in TEXT
    )
