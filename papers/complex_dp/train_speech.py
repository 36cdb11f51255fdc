"""Train the speech network of Ziller et al. in a reading in which it learns, and privately at the true epsilon.

    python -m papers.complex_dp.train_speech --data CLIPS              # the private rows, and without privacy
    python -m papers.complex_dp.train_speech --data CLIPS --search     # readings, on training speakers alone

Without privacy: batches of 64, ten epochs, rate 0.1, no clipping. Privately: sampling rate 0.009, five epochs (556
rounds), noise multipliers 1 and 1 / sqrt(2), clip 2, rate 0.1. The unit is the clip. `--search` trains each reading for
200 steps of 24 clips on some training speakers, and measures it on the others after 50, 100 and 200. Test speakers are
measured once, at the end of each row. Noise is seeded: it simulates the guarantee.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch.nn import functional

import zetadp
from papers.complex_dp.printed import ZILLER, as_added, as_claimed
from papers.complex_dp.roc import macro_area
from papers.complex_dp.speech_commands.clips import capped, is_tested, read_clips
from papers.complex_dp.speech_commands.encoder import spectrogram
from papers.complex_dp.speech_network import READINGS, SpeechNetwork
from papers.experiments import ended, parser_of
from zetadp.base.epsilon import rounded_up
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import write_text
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

CLIPS = Path("resources/speech-commands-clips")
MOST_CLIPS = 40
RATE, BATCH, EPOCHS = 0.1, 64, 10
SEARCHED, WATCHED = 24, (50, 100, 200)
"""Clips of a step of the search, and steps after which it measures."""
WATCHING = 8
"""One in so many training speakers watches the search."""
AT_ONCE = 32


class Clips(NamedTuple):
    """Spectrograms and words of clips, and their speakers."""

    inputs: Tensor
    words: Tensor
    speakers: np.ndarray

    def of(self, chosen: np.ndarray) -> Clips:
        """Return some of the clips."""
        indices = torch.from_numpy(np.flatnonzero(chosen))
        return Clips(self.inputs[indices], self.words[indices], self.speakers[chosen])


def read(folder: Path) -> tuple[Clips, Clips]:
    """Return the clips of speakers who train, at most `MOST_CLIPS` of each, and of those who only test."""
    clips = read_clips(folder)
    tested = clips.names["speaker"].map(is_tested).to_numpy()
    parts = [capped(clips.part(~tested), MOST_CLIPS), clips.part(tested)]
    training, test = (
        Clips(
            torch.from_numpy(spectrogram(part.arrays["values"]))[:, None],
            torch.from_numpy(part.arrays["labels"]),
            part.names["speaker"].to_numpy(),
        )
        for part in parts
    )
    return training, test


def area(model: nn.Module, clips: Clips) -> float:
    """Return the area under the ROC curve of a word against all others, mean over words, in %."""
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in clips.inputs.split(AT_ONCE)])
    return 100 * float(macro_area(clips.words.numpy(), outputs.softmax(dim=1).double().numpy())[0])


def steps(model: nn.Module, clips: Clips, batch: int, count: int, seed: int) -> Iterator[int]:
    """Take ordinary steps of plain gradient descent, without clipping and noise; yield the number of each."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    random, order = stream(seed, Purpose.SAMPLING), np.empty(0, dtype=np.int64)
    for number in range(1, count + 1):
        if len(order) < batch:
            order = random.permutation(len(clips.inputs))
        chosen, order = torch.from_numpy(order[:batch]), order[batch:]
        optimiser.zero_grad()
        functional.cross_entropy(model(clips.inputs[chosen]), clips.words[chosen]).backward()
        optimiser.step()
        yield number


def search(training: Clips, names: list[str], seed: int) -> pd.DataFrame:
    """Return the area of readings on training speakers who do not train here, after each number of `WATCHED` steps."""
    people = np.unique(training.speakers)
    watching = np.isin(training.speakers, people[::WATCHING])
    trained_on, others = training.of(~watching), training.of(watching)
    rows = []
    for name in names:
        model, began = SpeechNetwork(READINGS[name], stream(seed, Purpose.WEIGHTS)), time.process_time()
        for number in steps(model, trained_on, SEARCHED, WATCHED[-1], seed):
            if number in WATCHED:
                row = {"reading": name, **vars(READINGS[name]), "steps": number, "seed": seed}
                row |= {"auc": area(model, others), "clips": len(others.inputs)}
                rows.append(row | {"core_seconds": time.process_time() - began})
                print(f"{name}, {number} steps: {row['auc']:.1f}", flush=True)
    return pd.DataFrame(rows)


def private_rows(training: Clips, test: Clips, folder: Path, seed: int) -> Iterator[dict[str, object]]:
    """Train with the paper's private settings, at the true epsilons of its noise made right and of its noise."""
    (claim,) = (candidate for candidate in ZILLER if candidate.experiment == "Speech commands")
    count = len(training.inputs)
    for spent in (as_claimed(claim), as_added(claim)):
        model = SpeechNetwork(READINGS["learns"], stream(seed, Purpose.WEIGHTS))
        run = zetadp.private(
            model,
            zetadp.Records(training.inputs, training.words, patients=range(count)),
            zetadp.Public(count, per_round=claim.sampling_probability * count, rounds=claim.rounds, clip=2.0),
            epsilon=spent,
            delta=claim.delta,
            folder=folder / f"private-{rounded_up(spent, 3)}-{seed}",
            seed=seed,
            options=zetadp.Options(optimiser=torch.optim.SGD(model.parameters(), lr=RATE)),
        )
        yield {"epsilon": rounded_up(spent, 3), "seed": seed, "auc": area(run.train().model, test)}


def main() -> None:
    """Write the search, or the rows."""
    parser = parser_of(__doc__, "complex_dp/speech_commands")
    parser.add_argument("--data", type=Path, default=CLIPS, help="folder of the clips (%(default)s)")
    parser.add_argument("--search", action="store_true", help="compare readings on training speakers")
    parser.add_argument("--readings", nargs="+", choices=READINGS, default=list(READINGS), help="those of the search")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    training, test = read(arguments.data)
    cohort = f"speech-commands, {len(training.inputs)} + {len(test.inputs)} records, not simulated"
    if arguments.search:
        frame, name = search(training, arguments.readings, arguments.seed), "readings"
    else:
        model = SpeechNetwork(READINGS["learns"], stream(arguments.seed, Purpose.WEIGHTS))
        for _ in steps(model, training, BATCH, math.ceil(EPOCHS * len(training.inputs) / BATCH), arguments.seed):
            pass
        rows = [{"epsilon": "unclipped", "seed": arguments.seed, "auc": area(model, test)}]
        rows += private_rows(training, test, arguments.output / "runs", arguments.seed)
        frame, name = pd.DataFrame(rows), "learns"
    write_text(
        arguments.output / f"{name}.csv", to_csv(frame, origin(cohort, str(arguments.seed)), float_format="%.6g")
    )


if __name__ == "__main__":
    ended(main)
