"""The page of directions shows what its kept tables hold."""

from __future__ import annotations

from itertools import combinations

import pandas as pd
from paper_pages import kept, text_of

PAPER = "directions"
TEXT = text_of("directions/README.md")


def missing(phrases: list[str]) -> list[str]:
    """Return the phrases that the page lacks."""
    return [phrase for phrase in phrases if phrase not in TEXT]


def test_the_page_has_the_errors_of_the_paper_s_tables():
    errors = kept(PAPER, "inversion").set_index(["data", "attack", "batch", "mechanism", "pair"]).sort_index()
    phrases = []
    for data, name in (("mnist", "MNIST"), ("fashion", "Fashion-MNIST")):
        of = errors.loc[data, "iga", 128]
        for cells in (
            [("none", 0), ("clipped", 0)],
            [("gaussian", 75), ("gaussian", 500)],
            [("printed_direction", 75), ("printed_direction", 500)],
        ):
            rows = [of.loc[cell] for cell in cells]
            printed = ", ".join(f"{row['printed_mse']:.2f}" for row in rows)
            phrases.append(f"{printed} | | {', '.join(f'{row.mse:.2f}' for row in rows)} |")
        cells = [("none", 0), ("gaussian", 500), ("printed_direction", 500)]
        rows = [errors.loc[(data, "dlg", 8, *cell)] for cell in cells]
        printed = ", ".join(f"{row['printed_mse']:.2f}" for row in rows)
        phrases.append(f"{printed} | | {', '.join(f'{row.mse:.2f}' for row in rows)} | noise defeats it")
        assert f"Table III, {name}" in TEXT
    settings = errors.reset_index().query("attack == 'iga' and mechanism in ['gaussian', 'printed_direction']")
    mnist = settings[(settings["data"] == "mnist") & (settings["pair"] < 500)]
    phrases.append(f"{mnist.printed_mse.min():.2f} to {mnist.printed_mse.max():.2f} (MNIST) | | ")
    phrases.append(f"| {mnist.mse.min():.2f} to {mnist.mse.max():.2f}, all")
    gaussian = settings[settings["mechanism"] == "gaussian"]
    more = gaussian["mse"] - gaussian["printed_mse"]
    phrases.append(
        f"All {len(more)} Gaussian errors exceed the printed ones, by {more.min():.2f} to {more.max():.2f} "
        f"({more.mean():.2f} on average)"
    )
    directions = errors.reset_index().query("mechanism in ['direction', 'printed_direction'] and attack == 'iga'")
    least, most = gaussian["capacity"].min(), directions["capacity"].max()
    layers = errors.loc["mnist", "iga", 16]["matched"]
    phrases.append(f"{least:.0f} nats or more and every direction {most:.0f} or less")
    phrases += [f"the error is {layers['by_layer', 0]:.2f} against {layers['clipped', 0]:.2f}"]
    assert not missing(phrases)


def test_the_page_counts_the_pairs_that_a_measure_orders():
    counts = kept(PAPER, "judged").sum(numeric_only=True).astype(int)
    phrases = [
        "orders {capacity_orders} of {pairs} pairs, and ε {epsilon_orders}.",
        "capacity orders {capacity_orders_directions} of {directions} pairs",
        "among Gaussians {capacity_orders_gaussians} of {gaussians}",
        "larger error in {capacity_orders_alike} of {alike} pairs",
        "{capacity_orders} of {pairs} pairs, ε {epsilon_orders} |",
    ]
    assert not missing([phrase.format(**counts) for phrase in phrases])
    runs = kept(PAPER, "order").groupby(["epsilon", "batch", "hidden", "clip", "mechanism"])
    means = runs[["nmse", "capacity"]].mean()
    pairs = ordered = 0
    for _, group in means.groupby(level=[0, 1, 2, 3]):
        for one, other in combinations(group.itertuples(), 2):
            apart = abs(one.nmse - other.nmse) >= 0.02
            pairs += apart
            ordered += apart and (one.capacity - other.capacity) * (one.nmse - other.nmse) < 0
    assert f"ordered {ordered} of {pairs} pairs of mechanisms at equal ε" in TEXT


def test_the_page_says_what_a_message_shows_of_its_own_images():
    errors = kept(PAPER, "matched")
    errors["less"] = errors["others"] - errors["matched"]
    errors["deviations"] = errors["less"] / errors["others_std"]
    rows = errors[~errors["mechanism"].isin(["by_layer", "gaussian_10", "gaussian_100"])].to_dict("records")
    phrases = ["{matched:.2f} | {others:.2f} | {less:.3f} | {deviations:.1f} |".format(**row) for row in rows]
    own = errors[errors["batch"] == 128].set_index("mechanism")
    phrases.append(f"{own.less['gaussian']:.3f} Gaussian, {own.less['direction']:.3f} VMF")
    phrases.append(
        f"our error is {own.mse['gaussian']:.2f}. With a tenth of the noise it is {own.mse['gaussian_10']:.2f}, and "
        f"with a hundredth {own.mse['gaussian_100']:.2f}"
    )
    assert not missing(phrases)


def test_the_page_says_what_an_attack_measures():
    measured = kept(PAPER, "audit").pivot_table(index=["others", "epsilon"], columns="mechanism", values="measured")
    words = {
        "opposite, half as long": "their sum is opposite to the person's gradient, and half as long",
        "none": "nobody",
        "nine patients": "nine simulated patients",
    }
    phrases = [
        f"| {shown} | 8 | {measured.loc[(name, '8'), 'gaussian']:.2f} | {measured.loc[(name, '8'), 'direction']:.2f} |"
        for name, shown in words.items()
    ]
    assert not missing(phrases)


def test_the_page_says_what_directions_cost():
    accuracies = kept(PAPER, "utility")
    cells = accuracies.set_index(["data", "mechanism", "pair"])["accuracy"].unstack("mechanism")
    cost, printed_cost = cells["gaussian"] - cells["direction"], cells["gaussian"] - cells["printed_direction"]
    more = int((cost > printed_cost).sum())
    phrases = [
        f"directions score {cost.min():.0f} to {cost.max():.0f} points less than Gaussian noise, which is more than at "
        f"the printed pairs in {more} of {cost.notna().sum()} cases",
    ]
    columns = ["mechanism", "pair", "true_epsilon", "accuracy", "accuracy_std", "printed_accuracy"]
    shown = accuracies[accuracies["pair"].isin([0, 75, 150, 400])].set_index("data")[columns]
    for row in shown[shown["mechanism"] != "decay"].itertuples():
        phrases.append(f"{row.accuracy:.1f} ± {row.accuracy_std:.1f} |")
        if row.mechanism.startswith(("gaussian", "printed")):
            phrases.append(f"| {row.true_epsilon:.3g} | ")
        if row.printed_accuracy > 0:
            phrases.append(f"± {row.accuracy_std:.1f} | {row.printed_accuracy + 1e-9:.1f} |")
    far = (accuracies["accuracy"] - accuracies["printed_accuracy"]).abs()
    gaussian = far[accuracies["mechanism"] == "gaussian"]
    directions = far[accuracies["mechanism"] == "printed_direction"].sort_values()
    phrases.append(
        f"agree with the paper to {gaussian.max():.1f} points, and those of directions to {directions.iloc[-3]:.1f}, "
        "but for two"
    )
    phrases.append(f"which are {directions.iloc[-2]:.0f} and {directions.iloc[-1]:.0f} points higher in print")
    phrases.append(f"within {gaussian.max():.1f} and {directions.iloc[-3]:.1f} points |")
    assert not missing(phrases)
    for text in (TEXT, text_of("directions/training.md")):
        assert f"{cost.min():.0f} to {cost.max():.0f} " in text


def test_the_page_says_which_decay_fits():
    tables = [kept(PAPER, name) for name in ("utility_128", "utility_small", "utility_16")]
    runs = pd.concat(tables, ignore_index=True)
    costs, nearest = {}, {}
    for batch, cells in runs.groupby("batch"):
        compared = cells[cells["pair"].isin([75, 150, 400]) & (cells["mechanism"] != "direction")]
        far = (compared["accuracy"] - compared["printed_accuracy"]).abs()
        apart = compared.assign(far=far).set_index(["mechanism", "data", "pair", "decay"])["far"].unstack("decay")
        means = apart.groupby("mechanism").mean()
        nearer = (apart["apart"] < apart["none"]).sum()
        directions, gaussian = means.loc["printed_direction"], means.loc["gaussian"]
        row = (
            f"| {batch} | {directions['none']:.1f} | {directions['apart']:.1f} | {gaussian['none']:.1f} | "
            f"{gaussian['apart']:.1f} | {nearer} of {len(apart)} |"
        )
        assert row in TEXT
        plain = cells[cells["decay"] == "none"].set_index(["mechanism", "data", "pair"])["accuracy"]
        nearest[batch] = nearer
        costs[batch] = plain["gaussian"] - plain["direction"]
    assert all(f"{costs[batch].min():.0f} to {costs[batch].max():.0f} " in TEXT for batch in (64, 32, 16))
    assert f"AdamW nearer in {nearest[64] + nearest[32]} of 24" in TEXT
    assert f"AdamW nearer in {nearest[16]} of 12" in TEXT
    inside = runs[runs["decay"] == "gradient"]["accuracy"]
    assert f"leaves {inside.min():.0f} to {inside.max():.0f} % accuracy" in TEXT


def test_the_page_gives_the_printed_epsilons():
    rows = kept(PAPER, "table")
    vmf, gaussian = rows[rows["part"] == "printed_directions"], rows[rows["part"] == "printed_gaussian"]
    printed = vmf["table_4"].fillna(vmf["table_1"])
    ways = vmf[["first_approach", "second_approach", "second_whole_orders"]]
    assert (ways.sub(printed, axis=0).abs().min(axis=1) / printed).max() <= 0.032
    assert (printed < vmf["true_epsilon"]).all()
    assert (gaussian["printed"] > gaussian["true_epsilon"]).all()
    alike = rows[rows["part"] == "like_for_like"]
    assert (alike["true_epsilon"] / alike["gaussian_epsilon"] - 1).abs().max() < 0.002
    both = rows[rows["part"] == "claim"].set_index("predictor")
    claims = both["spearman_MNIST"]
    assert claims.tolist() == both["spearman_Fashion-MNIST"].tolist()
    names = {
        "printed epsilon": "printed ε",
        "true epsilon": "true ε",
        "capacity radius 1": "capacity, radius 1",
        "capacity radius root 3": "capacity, radius √3",
        "capacity radius 3": "capacity, radius 3 (the paper's)",
        "capacity radius 128": "capacity, radius 128 (mean over the batch)",
    }
    phrases = [f"| {name} | {claims[key]:.2f} |" for key, name in names.items()]
    phrases.append(f"{claims['capacity radius 3']:.2f}, ε {claims['printed epsilon']:.2f} | as true")
    phrases.append(f"{vmf['true_epsilon'].min():.3g} to {vmf['true_epsilon'].max():.3g} (1407) | as true")
    phrases.append(f"{gaussian['true_epsilon'].min():.3g} to {gaussian['true_epsilon'].max():.3g} | as true")
    capacity = rows[(rows["part"] == "equal_capacity") & (rows["radius"] == 128)]
    assert capacity["gaussian_epsilon"].max() < 0.005
    phrases.append(f"VMF has up to {capacity['direction_epsilon'].max():.0f} ")
    assert not missing(phrases)


def test_the_page_shows_what_the_scenario_on_k_space_gave():
    heads = kept(PAPER, "heads").set_index(["network", "epsilon"])
    gaussian, direction = (
        ["{mean:.2f} ± {std:.2f} %".format(**heads.loc[(name, epsilon)]) for epsilon in ("8", "50")]
        for name in ("pretrained", "pretrained_directions")
    )
    assert f"Gaussian noise ends at {gaussian[0]} at ε = 8 and {gaussian[1]} at 50" in TEXT
    assert f"directions at {direction[0]} and {direction[1]}" in TEXT
    assert f"the public weights already reach {heads['public_start'].iloc[0]:.2f} %" in TEXT
