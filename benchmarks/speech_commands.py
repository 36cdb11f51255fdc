"""Write the table of spoken commands: speech_commands.yaml per clip, and speech_commands_speakers.yaml per speaker.

    make speech-commands

runs the two scenarios and this, which writes table.csv and table.md. All epsilons are true. The areas that Ziller et
al. print appear at the true epsilon of their noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scenarios import Experiment, declared_by, ended, write_joined

from zetadp.base.epsilon import USELESS, epsilon_shown, rounded_up
from zetadp.base.randomness import Purpose, stream
from zetadp.base.validation import UserError
from zetadp.core.metrics import LEVEL
from zetadp.report.rendering import MISSING, Sheet, interval_cell, spread_cell
from zetadp.tasks.speech_commands.clips import is_tested
from zetadp.tasks.speech_commands.cohort import read_written
from zetadp.tasks.speech_commands.discrimination import auc_interval, macro_auc
from zetadp.tasks.speech_commands.encoder import WordEncoder
from zetadp.tasks.speech_commands.word_network import log_mel

SCENARIOS = {"speech_commands": "clip", "speech_commands_speakers": "speaker"}
"""The scenarios and their units."""
METHODS = {
    ("head", "central"): "head on public features, one holder",
    ("slow_head", "central"): "head on public features, one holder",
    ("slow_head", "federated"): "head on public features, 11 nodes",
    ("cnn", "central"): "the paper's network and settings, one holder",
    ("real_cnn", "central"): "its real twin on magnitudes, one holder",
}
PRINTED = {"3.31": (92.5, "1.47"), "inf": (97.8, "inf")}
"""Area in % and epsilon as Ziller et al. print them (Table 3), by true epsilon per clip."""
PUBLIC = "the network of simulated words alone"
ENCODER = Path("resources/public-words/encoder.safetensors")
COLUMNS = ["unit", "method", "epsilon", "epsilon_per_speaker", "seeds", "mean", "std", "ci_low", "ci_high", "accuracy"]


def declared() -> tuple[str, str]:
    """Return cohorts and seeds."""
    return declared_by(*SCENARIOS)


def collect(experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return one row for each scenario, method and epsilon, and those that the paper prints."""
    parts = []
    for scenario, experiment in experiments.items():
        found = experiment.table()
        cells = list(zip(found["network"], found["arm"], found["epsilon"], strict=True))
        found["unit"] = SCENARIOS[scenario]
        found["method"] = [METHODS[cell[:2]] for cell in cells]
        spent = per_speaker(experiment)
        found["epsilon_per_speaker"] = [spent[cell] for cell in cells]
        found["accuracy"] = [
            100 * pd.Series([run["accuracy"] for run in experiment.metrics(*cell).values()]).mean() for cell in cells
        ]
        parts.append(found[COLUMNS])
    printed = [
        {"unit": "clip", "method": "the paper, printed", "epsilon": true, "mean": area, "printed_epsilon": shown}
        for true, (area, shown) in PRINTED.items()
    ]
    return pd.concat([*parts, pd.DataFrame([public_alone(), *printed])], ignore_index=True)


def public_alone() -> dict[str, object]:
    """Return the row of the public network on the test clips. It was trained on simulated words only."""
    network = WordEncoder.load(ENCODER).network
    clips = read_written(Path("resources/speech-commands/clips.h5"))
    tested = clips.part(np.array([is_tested(speaker) for speaker in clips.speakers]))
    with torch.no_grad():
        parts = [network(log_mel(part)) for part in np.array_split(tested.waves, 1 + len(tested.waves) // 100)]
    scores = torch.cat(parts).softmax(dim=1).double().numpy()
    area = 100 * float(macro_auc(tested.labels, scores)[0])
    low, high = auc_interval(tested.labels, scores, tested.speakers, stream(0, Purpose.BOOTSTRAP), LEVEL)
    right = 100 * float((scores.argmax(axis=1) == tested.labels).mean())
    row = {"unit": "none", "method": PUBLIC, "epsilon": "0", "epsilon_per_speaker": 0.0, "seeds": 1, "accuracy": right}
    return row | {"mean": area, "std": float("nan"), "ci_low": 100 * low, "ci_high": 100 * high}


def per_speaker(experiment: Experiment) -> dict[tuple[str, str, str], float]:
    """Return the largest epsilon per speaker of every network, arm and target."""
    path = experiment.results / "tables/speakers.csv"
    if not path.is_file():
        raise UserError(f"Expected {path} of the finished scenario, found none. Run: make speech-commands")
    found = pd.read_csv(path, dtype={"epsilon": str})
    worst = found.groupby(["network", "arm", "epsilon"])["epsilon_per_speaker"].max()
    return {(str(n), str(a), str(e)): float(value) for (n, a, e), value in worst.items()}


def sheet(found: pd.DataFrame, made: tuple[str, ...]) -> Sheet:
    """Lay the table out, one line per method and epsilon, with a note on how it was made."""
    lines = []
    ordered = found.assign(order=found["epsilon"].astype(float))
    for _, row in ordered.sort_values(["unit", "method", "order"], kind="stable").iterrows():
        own = row["method"] != "the paper, printed"
        shown = "0" if row["epsilon"] == "0" else epsilon_shown(row["epsilon"])
        lines.append(
            (
                row["unit"],
                row["method"],
                shown if own else f"{shown} (printed as {epsilon_shown(row['printed_epsilon'])})",
                spent_cell(row["epsilon_per_speaker"]),
                spread_cell(row) if own else f"{row['mean']:g}",
                interval_cell(row) if own else MISSING,
                f"{row['accuracy']:.1f}" if own else MISSING,
                str(int(row["seeds"])) if own else MISSING,
            )
        )
    clips = read_clips_of_a_speaker()
    notes = (
        "Area under the ROC curve in %, one word against all others, mean over words; mean and standard deviation over "
        "seeds. Scores are softmax probabilities. Intervals: 95%, bootstrap over the test speakers, resampled jointly "
        "over seeds, to first order. Accuracy in %.",
        f"δ = 0.00001. ε per speaker: where the unit is the clip, by group privacy over the {clips} training clips "
        "that a speaker has at most.",
        "ε = 0: no recording took part in any training; only the test clips are recordings.",
        "ε = ∞: gradients are clipped but get no noise. Noise is seeded, so it simulates and protects nobody.",
        "The paper prints 92.5 % as ε = 1.47. Its sampling rate, noise multiplier and epochs give 1.24 with the right "
        "noise. The noise that its code adds is too small by √2 and gives 3.31. It drew clips without replacement; all "
        "figures here hold for Poisson sampling. It trained on 7,200 clips, we on 2,517, and its split is not by "
        "speaker as far as it says.",
        *made,
    )
    headings = ("unit", "method", "ε per unit", "ε per speaker", "AUC", "95% interval", "accuracy", "seeds")
    return Sheet("Spoken commands at true ε", headings, tuple(lines), notes, names=2)


def read_clips_of_a_speaker() -> int:
    """Return the declared largest number of training clips of a speaker."""
    return int(Experiment.of("speech_commands").config["task"]["settings"]["clips_of_a_speaker"])


def spent_cell(epsilon: float) -> str:
    """Return an epsilon per speaker as text."""
    if pd.isna(epsilon):
        return MISSING
    if epsilon == 0:
        return "0"
    if epsilon == float("inf"):
        return "∞"
    return rounded_up(epsilon, digits=3) if epsilon <= USELESS else f"no useful guarantee (> {USELESS})"


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results/speech_commands"))
    given = parser.parse_args()
    experiments = {scenario: Experiment.of(scenario) for scenario in SCENARIOS}
    write_joined(given.output / "table", experiments, collect, sheet)


if __name__ == "__main__":
    ended(main)
