"""The network of Ziller et al. on spoken commands, with their settings, at true epsilons per clip.

    make speech-commands-paper SPEECH=FOLDER

runs the scenario speech_commands_paper.yaml and this, which writes paper.csv and paper.md. Each run of the complex
network takes about 14 minutes of one core.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import pandas as pd
from scenarios import Experiment, declared_by, ended, write_joined
from speech_commands import measured, printed, sheet

SCENARIO = "speech_commands_paper"
METHODS = {
    ("cnn", "central"): "the paper's network and settings, one holder",
    ("real_cnn", "central"): "its real twin on magnitudes, one holder",
}


def declared() -> tuple[str, str]:
    """Return cohort and seeds."""
    return declared_by(SCENARIO)


def collect(experiments: dict[str, Experiment]) -> pd.DataFrame:
    """Return one row a network and epsilon, and those that the paper prints."""
    return pd.concat([measured(experiments[SCENARIO], "clip", METHODS), pd.DataFrame(printed())], ignore_index=True)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results/speech_commands"))
    given = parser.parse_args()
    titled = partial(sheet, title="Spoken commands by the paper's network, at true ε")
    write_joined(given.output / "paper", {SCENARIO: Experiment.of(SCENARIO)}, collect, titled)


if __name__ == "__main__":
    ended(main)
