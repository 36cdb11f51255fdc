"""The pages of Ziller et al. show what their kept tables hold."""

from __future__ import annotations

import pandas as pd
import pytest
from paper_pages import kept, line_of, table_lines, text_of

from zetadp.accounting.calibration import noise_for_epsilon
from zetadp.accounting.composition import epsilon_group
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import rounded_up

PAPER = "complex_dp"
PAGE = "complex_dp/README.md"
TEXT = text_of(PAGE)
DIGITS = kept(PAPER, "phase_mnist/table", "examples", "method", "epsilon")
COMPOSITES, ONCE, PLAIN = "composites, each image in several", "composites, each image in one", "plain digits"
HEAD, NODES, THEIRS = (
    "head on public features, one holder",
    "head on public features, 11 nodes",
    "the paper's network and settings, one holder",
)
ECG = kept(PAPER, "ecg/table", "method")
SPEECH = kept(PAPER, "speech_commands/table")
RANKED = kept(PAPER, "activations/table", "task", "activation")
REBUILT = kept(PAPER, "reconstruction/table", "method", "epsilon")
TUNED, WITHOUT = ("small part trained", "8"), ("small part trained, no noise", "inf")
COST = {device: kept(PAPER, f"cost-{device}", "what") for device in ("cpu", "cuda")}


def spread(row: pd.Series) -> str:
    return f"{row['mean']:.2f}" + ("" if pd.isna(row["std"]) else f" ± {row['std']:.2f}")


def test_the_table_of_digits_has_the_kept_cells():
    heading = next(line for line in table_lines(PAGE) if line[:2] == ["examples", "method"])
    epsilons = [cell.removeprefix("ε = ").replace("∞", "inf") for cell in heading[2:]]
    start = table_lines(PAGE).index(heading) + 2
    lines = [line for line in table_lines(PAGE)[start : start + 8] if "printed" not in line[1]]
    rows = [(COMPOSITES, HEAD), (COMPOSITES, NODES), (COMPOSITES, THEIRS), (ONCE, HEAD), (PLAIN, HEAD), (PLAIN, THEIRS)]
    for line, (examples, method) in zip(lines, rows, strict=True):
        cells = [(examples, method, epsilon) for epsilon in epsilons]
        assert line[2:] == [spread(DIGITS.loc[cell]) if cell in DIGITS.index else "" for cell in cells]


def test_sentences_on_digits_are_those_of_the_tables():
    free = [DIGITS.loc[(examples, THEIRS, "inf"), "mean"] for examples in (COMPOSITES, PLAIN)]
    assert f"reach {free[0]:.2f} and {free[1]:.2f} % even without noise" in TEXT
    without = [kept(PAPER, f"phase_mnist/without_{name}").iloc[0]["mean"] for name in ("composites", "digits")]
    assert f"two seeds): {without[0]:.2f} on composites and {without[1]:.2f} on plain digits" in TEXT
    searched = kept(PAPER, "phase_mnist/search")
    chosen = {
        "scattering": 150,
        "rounds": 100,
        "clip": 0.3,
        "rate": 300,
        "momentum": 0.5,
        "averaged": 0.5,
        "whitening": 0.5,
    }
    alike = searched[(searched[list(chosen)] == pd.Series(chosen)).all(axis=1)].set_index("learned")["accuracy"]
    assert alike[0] == searched["accuracy"].max()
    assert f"scattering alone is best ({alike[0]:.2f} against {alike[64]:.2f} %)" in TEXT


def test_the_first_table_has_the_kept_results():
    for name, examples, epsilon in (("PhaseMNIST", COMPOSITES, "3.4"), ("MNIST", PLAIN, "1.52")):
        mean = DIGITS.loc[(examples, THEIRS, epsilon), "mean"]
        assert line_of(PAGE, f"Table 1, {name}, ε = 0.53: their network")[3] == f"{mean:.2f} % at {epsilon}"
    without = [kept(PAPER, f"phase_mnist/without_{name}").iloc[0] for name in ("composites", "digits")]
    assert line_of(PAGE, "Table 1, without privacy")[3] == ", ".join(map(spread, without)) + " %"
    heads = [line for line in table_lines(PAGE) if line[0] == "the same: head on public features"]
    clips = SPEECH[(SPEECH["unit"] == "clip") & (SPEECH["epsilon"] == "1.47")].set_index("method")["mean"][HEAD]
    best = [DIGITS.loc[(examples, HEAD, "0.53"), "mean"] for examples in (COMPOSITES, PLAIN)]
    best += [ECG.loc["head on public features", "mean"], clips]
    assert [line[3].split(" %")[0] for line in heads] == [f"{mean:.2f}" for mean in best]
    assert line_of(PAGE, "Table 5, fastMRI knee, ε = 0.67 per slice")[3].startswith(
        f"SSIM {REBUILT.loc[TUNED, 'SSIM']:.3f}"
    )
    for device, where in (("cpu", "CPU"), ("cuda", "Quadro RTX 8000")):
        line = line_of(PAGE, f"Tables 6 and 7, {where}")
        times = [COST[device].loc[f"step {kind} privacy, complex"] for kind in ("with", "without")]
        printed, ours = (times[0][column] / times[1][column] for column in ("printed_ms", "ms"))
        assert f"{printed:.0f} times" in line[1]
        assert line[3].startswith(f"{ours:.1f} times")


def test_the_first_table_has_the_results_of_other_networks():
    alone = ECG["mean"]
    theirs = alone["the paper's network and settings"], alone["the paper's network, the noise of its code, ε = 2.29"]
    assert (
        line_of(PAGE, "Table 2, ECG, ε = 1.76: their network")[3]
        == f"{theirs[0]:.2f} % at 1.76, {theirs[1]:.2f} % at 2.29"
    )
    free, clipped = alone["the paper's network, as it trains without privacy"], alone["the paper's network, no noise"]
    assert line_of(PAGE, "Table 2, without privacy")[3] == f"{free:.2f} %; clipped {clipped:.2f} %"
    (speech,) = SPEECH[SPEECH["method"] == THEIRS]["mean"]
    assert line_of(PAGE, "Table 3, speech, ε = 1.47: their network")[3] == f"{speech:.1f} %, chance"
    without, learns = (
        kept(PAPER, "speech_commands/without").iloc[0],
        kept(PAPER, "speech_commands/learns", "epsilon")["auc"],
    )
    reached = f"{without['mean']:.1f} %; another reading {learns['unclipped']:.1f} %"
    assert line_of(PAGE, "Table 3, without privacy")[3] == reached
    private = f"{learns['3.31']:.1f} % at 3.31, {learns['1.25']:.1f} % at 1.25"
    assert line_of(PAGE, "the same: another reading, which learns")[3] == private
    knee = kept(PAPER, "reconstruction/paper", "noise").loc["as added"]
    true = f"ε = {rounded_up(knee['per_slice'], 3)} per slice, {rounded_up(knee['per_patient'], 3)} per patient"
    assert line_of(PAGE, "Table 5, fastMRI knee, ε = 0.67 per slice")[2] == true
    rebuilt = REBUILT.loc[WITHOUT, "SSIM"]
    assert line_of(PAGE, "Table 5, without privacy")[3] == f"{rebuilt:.3f}, clipped, part of the weights"
    lost = line_of(PAGE, "points lost to privacy: digits, ECG, speech; SSIM")
    points = f"{clipped - theirs[0]:.1f}, {learns['unclipped'] - learns['3.31']:.1f}"
    assert lost[3] == f"at most 0.1, {points}; {rebuilt - REBUILT.loc[TUNED, 'SSIM']:.3f}"


def test_what_the_paper_prints_is_the_same_everywhere():
    """Tables 1 to 5 of Ziller et al."""
    printed = DIGITS["printed"].dropna()
    private = {COMPOSITES: "3.4", PLAIN: "1.52"}
    cells = [
        (f"{printed[examples, THEIRS, private[examples]]}", f"{printed[examples, THEIRS, 'inf']}")
        for examples in private
    ]
    lines = [[cell for cell in line if cell] for line in table_lines(PAGE) if line[:2] == ["", "the paper, printed"]]
    assert [line[1:] for line in lines] == [[f"{one} (as 0.53)", free] for one, free in cells]
    first = [line[1:3] for line in table_lines(PAGE) if line[0].endswith(("their network", "head on public features"))][
        :8
    ]
    true = [f"ε = {epsilon}" for epsilon in ("3.4", "3.4", "1.52 (real noise)", "1.52", "2.3", "2.3", "3.31", "3.31")]
    values = [f"{cells[0][0]} %"] * 2 + [f"{cells[1][0]} %"] * 2 + ["92 % AUC"] * 2 + ["92.5 % AUC"] * 2
    assert first == [list(pair) for pair in zip(values, true, strict=True)]
    assert line_of(PAGE, "Table 1, without privacy")[1] == f"{cells[0][1]}, {cells[1][1]} %"
    assert [line_of(PAGE, f"Table {number}, without privacy")[1] for number in (2, 3, 5)] == [
        "92 % AUC",
        "97.8 % AUC",
        "SSIM 0.70",
    ]
    assert line_of(PAGE, "Table 5, fastMRI knee, ε = 0.67 per slice")[1] == "SSIM 0.69"
    speech = SPEECH[SPEECH["method"] == "the paper, printed"]["mean"].tolist()
    shown = [line[1:] for line in table_lines(PAGE) if line[0] == "the paper, printed" and line[1] == "clip"]
    assert shown == [["clip", "3.31 (as 1.47)", "", f"{speech[0]:g}"], ["clip", "∞", "", f"{speech[1]:g}"]]
    lost = [f"{float(free) - float(one):.1f}" for one, free in cells] + [
        "0",
        f"{speech[1] - speech[0]:.1f}",
        "SSIM 0.01",
    ]
    assert (
        line_of(PAGE, "points lost to privacy: digits, ECG, speech; SSIM")[1]
        == f"{lost[0]} and {lost[1]}, 0, {lost[3]}; 0.01"
    )


def test_the_table_of_ecg_has_the_kept_cells():
    theirs, noise = "the paper's network", "the same at ε = 2.29 (the noise of the paper's code costs 2.3)"
    rows = {
        "the public encoder alone, which saw simulated patients only": (
            "",
            "",
            "public encoder alone, no patient seen",
        ),
        "the paper's network and settings": ("", f"{theirs} and settings", f"{theirs}, no noise"),
        "the same as the paper trains it without privacy": ("", "", f"{theirs}, as it trains without privacy"),
        "the same at what its noise multiplier really gives, ε = 1.5": (
            "",
            f"{theirs}, its noise made right, ε = 1.5",
            "",
        ),
        noise: ("", f"{theirs}, the noise of its code, ε = 2.29", ""),
        "its real-valued twin, on the signal": ("", f"real-valued twin of {theirs}, on the signal", ""),
        "age alone": ("", "", "age alone"),
        "device alone": ("", "", "device alone"),
    }
    for label, methods in rows.items():
        line = line_of(PAGE, label, "")
        assert line[1:4] == [f"{ECG.loc[method, 'mean']:.2f}" if method else "" for method in methods]
        for method in filter(None, methods):
            low, high = ECG.loc[method, ["ci_low", "ci_high"]]
            assert f"{low:.1f} to {high:.{0 if high == 100 else 1}f}" in line[4]
    heads = [ECG.loc[f"head on public features{end}"] for end in (", ε = 0.5", "", ", no noise")]
    assert line_of(PAGE, "head on public features, five seeds")[1:4] == [spread(row) for row in heads]


def test_sentences_on_ecg_are_those_of_the_table():
    text = TEXT[TEXT.index("176 patients of PTB-XL") : TEXT.index("Spoken commands A head")]
    clipped, noisy = (ECG.loc[f"the paper's network{kind}", "mean"] for kind in (", no noise", " and settings"))
    assert f"Noise costs the paper's network {clipped - noisy:.0f} points here" in text
    assert f"({clipped:.2f} clipped without noise, {noisy:.2f} at ε = 1.76; one seed)" in text
    free = ECG.loc["the paper's network, as it trains without privacy"]
    assert ECG.loc["the paper's network, no noise", "ci_high"] < 92 < free["ci_high"]
    assert f"The interval of {clipped:.2f} excludes the printed 92, that of {free['mean']:.2f} includes it" in text
    assert f"({ECG.loc['head on public features', 'epsilon_nine']:.2f} for the head at ε = 1.76)" in text
    exact = 0.025 ** (1 / 54)
    assert ECG.loc["head on public features", "ci_low"] == pytest.approx(100 * exact, abs=1e-3)


def test_the_table_of_spoken_commands_has_the_kept_rows():
    start = kept(PAPER, "speech_commands/start").iloc[0]
    without = kept(PAPER, "speech_commands/without").iloc[0]
    lines = {tuple(line[1:]) for line in table_lines(PAGE) if len(line) == 5}
    for row in SPEECH[SPEECH["seeds"].notna()].to_dict("records"):
        epsilon, speaker = (str(row[column]).replace("inf", "∞") for column in ("epsilon", "epsilon_per_speaker"))
        speaker = speaker if speaker == "∞" else f"{float(speaker):.0f}"
        assert (row["unit"], epsilon, speaker, spread(pd.Series(row))) in lines
    assert ("speaker", "1", "1", spread(start)) in lines
    assert ("clip", "∞, unclipped", "∞", f"{without['mean']:.2f}") in lines
    assert f"end at {without['mean']:.1f} ({without['ci_low']:.1f} to {without['ci_high']:.1f}, one seed" in TEXT
    alone = SPEECH[SPEECH["unit"] == "none"].iloc[0]
    intervals = ", and ".join(f"{row['ci_low']:.1f} to {row['ci_high']:.1f}" for row in (start, alone))
    assert f"({intervals}; {start['public_start']:.1f} % at its start;" in TEXT
    said = f"simulated words alone reaches {alone['mean']:.2f} and classifies {alone['accuracy']:.0f} % of the clips"
    assert said in TEXT
    heads = SPEECH[SPEECH["method"] == HEAD].set_index(["unit", "epsilon"])["mean"]
    assert f"it is {heads['clip', 'inf'] - heads['speaker', '8']:.1f} points below the head without noise" in TEXT
    learns = kept(PAPER, "speech_commands/learns", "epsilon")["auc"]
    said = f"it reaches {learns['unclipped']:.1f} without privacy. With the paper's private settings it reaches"
    assert f"{said} {learns['3.31']:.1f} at ε = 3.31" in TEXT
    assert f"and {learns['1.25']:.1f} at ε = 1.25" in TEXT
    searched = kept(PAPER, "speech_commands/readings", "steps")["auc"]
    assert f"| {', '.join(f'{searched[steps]:.1f}' for steps in (50, 100, 200))} |" in text_of("complex_dp/readings.md")


def test_distances_between_activations_are_those_of_the_table():
    ten = RANKED[RANKED["paper"].notna()]["mean"]
    speech = ten["speech"].sort_values(ascending=False)
    assert f"Eight of its ten lie within {speech.iloc[1] - speech.iloc[8]:.1f} points on speech" in TEXT
    ranked = {task: RANKED.loc[task].sort_values("rank")["mean"] for task in ("speech", "k-space")}
    spread_of_ten = ranked["speech"].iloc[1] - ranked["speech"].iloc[10]
    assert f"The next ten on speech lie within {spread_of_ten:.1f} points" in TEXT
    assert (RANKED.drop(index=["siglog", "zrelu", "complex_tanh", "igaussian"], level=1)["p_winner"] > 0.05).all()
    leads = [f"{means.iloc[0] - means.iloc[1]:.1f}" for means in ranked.values()]
    assert f"by {leads[0]} points on speech and {leads[1]} on k-space" in TEXT
    worst = [f"{RANKED.loc[task]['p_best'].max():.3f}" for task in ranked]
    assert f"(corrected p at most {worst[0]} on speech, {worst[1]} on k-space)" in TEXT
    mish = {task: means["conj_mish"] - means for task, means in ranked.items()}
    above = [mish[task][name] for task in ranked for name in ("modrelu", "crelu")]
    assert f"ConjMish is {min(above):.1f} to {max(above):.1f} points above modReLU with one bias and CReLU" in TEXT
    cardioids = ["cardioid", "cardioid_single", "cardioid_per_channel"]
    above, below = mish["speech"][cardioids], -mish["k-space"][cardioids]
    assert f"It is {min(above):.2f} to {max(above):.2f} points above the three cardioids on speech" in TEXT
    assert f"and {min(below):.1f} to {max(below):.1f} below them on k-space" in TEXT
    sigmoid, cardioid = (RANKED.loc[("speech", name)] for name in ("separable_sigmoid", "cardioid_per_channel"))
    assert f"reaches {sigmoid['mean']:.1f} % (printed {sigmoid['paper']:.1f})" in TEXT
    assert f"with a bias per channel {cardioid['mean']:.1f} % (printed {cardioid['paper']:.1f})" in TEXT
    for names in (("zrelu",), ("complex_tanh",), ("conj_mish", "split_mish")):
        for task in ranked:
            assert f"{', '.join(f'{ranked[task][name]:.1f} %' for name in names)} |" in TEXT
    chosen = kept(PAPER, "activations/search", "activation", "chosen")["rate"]
    ends = {name for (name, best), rate in chosen.items() if best and rate in (0.003, 0.1)}
    assert ends == {"complex_tanh"}


def test_epsilon_of_a_speaker_is_that_of_the_accountant():
    noise = noise_for_epsilon(1.47, 1e-5, 0.1, 60)
    epsilon = epsilon_group({NoisySum(0.1, noise): 60}, 1e-5, 40)
    assert f"ε of a speaker with 40 clips is {rounded_up(epsilon, 3)}" in TEXT
    assert f"A true ε of 0.53 takes a noise multiplier of {noise_for_epsilon(0.53, 1e-5, 0.01, 1000):.2f}" in TEXT


def test_sentences_on_reconstruction_are_those_of_the_tables():
    public, real = ("public network alone", "0"), ("real twin, public network alone", "0")
    three = [f"{REBUILT.loc[cell, 'SSIM']:.3f}" for cell in (public, TUNED, WITHOUT)]
    assert f"({three[0]}, {three[1]} and {three[2]}; three seeds" in TEXT
    assert f"covers {100 * REBUILT.loc[TUNED, 'way_SSIM']:.0f} % of the way" in TEXT
    assert f"covers {100 * REBUILT.loc[TUNED, 'way_SSIM']:.0f} % of the way" in text_of("complex_dp/reconstruction.md")
    assert (
        f"SSIM is {REBUILT.loc[('small part trained', '1'), 'SSIM']:.3f}, below the public network's {three[0]}" in TEXT
    )
    scratch, zero = ("all weights trained, from random ones", "8"), ("zero-filled", "0")
    said = f"it is {REBUILT.loc[scratch, 'SSIM']:.3f}, where the zero-filled image has {REBUILT.loc[zero, 'SSIM']:.3f}"
    assert said in TEXT
    twin = REBUILT.loc[("real twin, small part trained", "8"), "SSIM"]
    assert f"at ε = 8 has {twin:.3f}, below the complex network's {three[1]}" in TEXT
    assert f"({REBUILT.loc[real, 'SSIM']:.3f} and {three[0]})" in TEXT
    sensing = REBUILT.loc[("compressed sensing", "0")]
    assert f"({sensing['NMSE']:.3f} and {REBUILT.loc[TUNED, 'NMSE']:.3f}), and in SSIM ({sensing['SSIM']:.3f})" in TEXT
    for row in kept(PAPER, "reconstruction/paper").to_dict("records"):
        upper = [rounded_up(row[column], 3) for column in ("per_slice", "per_patient")]
        assert f"| 0.67 | {upper[0]} | {upper[1]} |" in TEXT
    heads = kept(PAPER, "reconstruction/real", "data", "method")["SSIM"]["three patients, T2w volumes"]
    private, free = heads["small part trained"], heads["small part trained, no noise"]
    assert f"SSIM is {private:.3f} at ε = 8 and {free:.3f} without noise" in TEXT
    assert f"has {heads['public network alone']:.3f}, and compressed sensing {heads['compressed sensing']:.3f}" in TEXT
    slices = kept(PAPER, "reconstruction/real", "data")["SSIM"]["one measured slice, eight coils"]
    assert f"the methods lie between {slices.min():.3f} and {slices.max():.3f}" in TEXT


def test_noise_costs_the_paper_s_networks_for_digits_at_most_a_tenth_of_a_point():
    for examples in (COMPOSITES, PLAIN):
        means = DIGITS.loc[(examples, THEIRS)]["mean"]
        assert (means - means["inf"]).abs().max() < 0.1
    assert "the small effect of noise, 0.1 points at most" in TEXT


@pytest.mark.parametrize("device", COST)
def test_the_tables_of_cost_have_the_kept_times(device):
    labels = {"linear": "linear 512 x 512, batch 64", "convolution": "convolution 3 to 16, 64 images of 224 x 224"}
    labels |= {name: name for name in ("step without privacy", "step with privacy")}
    lines = [line for line in table_lines(PAGE) if line[0] in labels.values()]
    half = lines[:4] if device == "cpu" else lines[4:]
    columns = [
        ("real", "printed_ms"),
        ("complex", "printed_ms"),
        ("real", "ms"),
        ("complex", "ms"),
        ("complex64", "ms"),
    ]
    for line, name in zip(half, labels, strict=True):
        times = [COST[device][column].get(f"{name}, {kind}") for kind, column in columns]
        assert line[0] == labels[name]
        for cell, time in zip(line[1:], times, strict=True):
            _, _, digits = cell.partition(".")
            assert cell == ("" if time is None or pd.isna(time) else f"{time:,.{len(digits)}f}")


def test_ratios_of_costs_follow_from_the_tables():
    def ratio(device: str, kind: str, column: str) -> float:
        times = COST[device][column]
        return float(times[f"step with privacy, {kind}"] / times[f"step without privacy, {kind}"])

    for device, words in (("cpu", "{:.1f} times a non-private one here and {:.0f} times in the paper"),
                          ("cuda", "{:.1f} times a non-private one, and {:.0f} times in the paper")):  # fmt: skip
        assert words.format(*(ratio(device, "complex", column) for column in ("ms", "printed_ms"))) in TEXT
    real = [ratio("cpu", "real", column) for column in ("ms", "printed_ms")]
    assert f"real step costs {real[0]:.1f} times a non-private one, and {real[1]:.0f} times in the paper" in TEXT
    times = COST["cpu"]["ms"]
    assert times["convolution, complex64"] / times["convolution, complex"] == pytest.approx(5, abs=0.5)
    assert f"{times['linear, complex'] / times['linear, complex64']:.1f} times as long" in TEXT


def test_core_hours_are_those_of_the_table():
    times = kept(PAPER, "time")
    assert f"take {times['hours'].sum():.1f} core hours ({times['runs'].sum()} runs)" in TEXT


def test_the_pages_of_tasks_have_the_figures_of_the_tables():
    hearts = kept(PAPER, "ecg/search")["mean"].max()
    assert f"the head reaches {hearts:.2f} % in the mean" in text_of("complex_dp/ecg.md")
    words = text_of("complex_dp/speech_commands.md")
    heads = SPEECH[SPEECH["method"] == HEAD].set_index(["unit", "epsilon"])["mean"]
    said = f"{heads['clip', '1.47']:.1f} % at ε = 1.47 per clip and {heads['speaker', '8']:.1f} % at ε = 8 per speaker"
    assert said in words
    searched = kept(PAPER, "speech_commands/search").groupby("epsilon")["auc"].max()
    assert {f"{searched[epsilon]:.1f}" for epsilon in ("1.47", "8")} == {"99.8"}
    assert "(99.8 % at ε = 1.47 and at 8)" in words
    public = REBUILT.loc[("public network alone", "0"), "SSIM"]
    said = f"the gain is small (SSIM {public:.3f} to {REBUILT.loc[WITHOUT, 'SSIM']:.3f})"
    assert said in text_of("complex_dp/reconstruction.md")
    seconds = kept(PAPER, "speech_commands/readings", "steps")["core_seconds"][200]
    assert f"200 steps took {seconds:.0f} s of a core" in text_of("complex_dp/readings.md")
