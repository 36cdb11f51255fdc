"""Find out what hierarchical rows need to know of classes of unequal size.

    python -m papers.neuromixgdp.compare_shares

Ten classes have from 40 % to 0.4 % of 20,000 simulated people, with Gaussian features around each class's centre. The
label of a row by hierarchical sampling follows from the sizes of the classes that are declared: equal ones, or the true
ones. Every head learns from the same rows once with the known noise subtracted (`fit_head_to_rows`), and once without.
Private descent has the same epsilon. Writes shares.csv and shares.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import torch

from papers.experiments import ended, laid_out, parser_of, write_table
from papers.neuromixgdp.compare_mnist import CHOSEN, DELTA, descent, real_parts, released_rows
from papers.sizes import by_size
from zetadp.base.randomness import Purpose, stream
from zetadp.nn.heads import RowExamples, fit_head_to_rows
from zetadp.report.provenance import origin, seeds_shown

if TYPE_CHECKING:
    from torch import Tensor

PEOPLE, TESTED, COMPONENTS = by_size(20_000, smoke=300), by_size(20_000, smoke=300), 64
EPSILON, SEED = 1.0, 0
UNEQUAL = tuple(0.6**number / sum(0.6**other for other in range(10)) for number in range(10))
APART, NORM = 0.32, 8.0
"""Standard deviation of the centres in each component, where that of a class is 1; and the norm of the features."""
ROWS = {
    "Poisson": {"active": 1.0},
    "hierarchical, equal classes assumed": {"active": 0.3},
    "hierarchical, shares declared": {"active": 0.3, "shares": UNEQUAL},
}
TITLE = f"Rows of {PEOPLE} people in ten classes of 40 % to 0.4 %, ε = {EPSILON:g} for each person"
NOTE = (
    "Accuracy in % on other people: of all, and the mean over classes. head: with the noise subtracted, or plain. "
    "Simulated features; noise is seeded and protects nobody."
)


def people(number: int, part: int) -> tuple[Tensor, Tensor]:
    """Return features of norm at most `NORM`, shape (person, component), and the class of each person."""
    centres = APART * stream(SEED, Purpose.COHORT).standard_normal((len(UNEQUAL), COMPONENTS))
    random = stream(SEED, Purpose.COHORT, 1 + part)
    labels = random.choice(len(UNEQUAL), number, p=UNEQUAL)
    x = torch.from_numpy(centres[labels] + random.standard_normal((number, COMPONENTS))).float()
    return x * (NORM / x.norm(dim=1, keepdim=True)).clamp(max=1), torch.from_numpy(labels)


def accuracies(head: tuple[Tensor, Tensor], x: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the accuracy of a head over all people and its mean over classes, in %."""
    weight, bias = head
    right = ((x @ weight.T + bias).argmax(dim=1) == labels).double()
    by_class = [float(right[labels == number].mean()) for number in labels.unique()]
    return {"accuracy": 100 * float(right.mean()), "class_mean": 100 * sum(by_class) / len(by_class)}


def table() -> pd.DataFrame:
    """Return one row for every method and head."""
    (x, labels), tests = people(PEOPLE, 0), people(TESTED, 1)
    one_hot = RowExamples(x.to(torch.complex64), torch.eye(len(UNEQUAL))[labels])
    head = descent(x / NORM, labels, EPSILON, CHOSEN.rate, SEED)
    results: list[dict[str, object]] = [
        {
            "method": "people without noise",
            "head": "plain",
            **accuracies(real_parts(fit_head_to_rows(one_hot)), *tests),
        },
        {"method": "private descent", "head": "", **accuracies(head, tests[0] / NORM, tests[1])},
    ]
    for method, settings in ROWS.items():
        rows, _ = released_rows(
            x,
            labels,
            f"shares-unequal-{SEED}",
            epsilon=EPSILON,
            delta=DELTA,
            classes=len(UNEQUAL),
            norm=NORM,
            **settings,
        )
        for kind, examples in (("subtracted", rows), ("plain", RowExamples(*rows[:2]))):
            results.append(
                {"method": method, "head": kind, **accuracies(real_parts(fit_head_to_rows(examples)), *tests)}
            )
    return pd.DataFrame(results)


def main() -> None:
    """Compare, and write the table."""
    arguments, frame = parser_of(__doc__, "neuromixgdp").parse_args(), table()
    source = origin(f"{PEOPLE} simulated people", seeds_shown([SEED]))
    write_table(arguments.output / "shares", frame, laid_out(TITLE, frame, (NOTE,)), source)


if __name__ == "__main__":
    ended(main)
