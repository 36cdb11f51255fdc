"""Attack released rows of MNIST: membership inference on rows and on heads, and inversion with pictures.

    python -m papers.neuromixgdp.attack_releases

The membership attacks use many independent releases of 100 images, with and without a target. Rows are attacked by a
likelihood ratio (`papers.neuromixgdp.membership`), and linear classifiers by their score. Thresholds are fixed
beforehand. Inversion uses releases of 5000 rows from 5000 images, made of pixels or of the public encoder's features. A
decoder, trained on simulated digits, turns features into pictures. All releases are made by the library, with seeded
noise. Writes inversion and membership, each as .csv, .md and .svg.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional

from papers.complex_dp.phase_mnist.encoder import simulated_digits
from papers.digits import described, encoder, features, images
from papers.experiments import ended, explained, laid_out, parser_of, save_figure, write_table
from papers.neuromixgdp.membership import RowAttack
from papers.sizes import by_size
from zetadp.account.ledger import Ledger
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.accounting.threat import CENTRAL_HOLDER
from zetadp.audit.detection import FALSE_ALARM, Claim, count_errors
from zetadp.base.epsilon import Target
from zetadp.base.randomness import Purpose, stream
from zetadp.nn.heads import RowExamples
from zetadp.own.release import Mixing, release_plan
from zetadp.report.figurestyle import SMALL, blank, figure_style, set_title, wrap_text
from zetadp.report.provenance import origin
from zetadp.training.assembly import Assembly
from zetadp.training.outbox import Outbox
from zetadp.training.records import LabelledItems, Node
from zetadp.training.round import do_round
from zetadp.training.seeding import entropy_of

if TYPE_CHECKING:
    from zetadp.training.plan import Plan

CLASSES, DELTA = 10, 1e-5
EPSILONS = (8.0, 1.0)
MIXED = {8.0: 8.0, 1.0: 2.0}
"""Images in a row on average, by epsilon, of the releases that are attacked for members."""
PEOPLE, RELEASES = 100, by_size(1000, smoke=20)
"""Images in a release that is attacked for members, which has as many rows; and releases on each side."""
RIDGE = 0.01
HEADS, PILOTS = by_size(800, smoke=20), by_size(200, smoke=5)
"""Heads that are trained with and without the target, and further ones that fix the threshold."""
POPULATION, ROWS = by_size(5000, smoke=300), by_size(300, smoke=60)
"""Number of images behind the rows for inversion, and number of these rows that are inverted."""
DEGREES = by_size((1, 4, 16, 64), smoke=(1, 4))
CANDIDATES = by_size(1000, smoke=100)
DIGITS = by_size(2000, smoke=200)
"""Simulated digits that the decoder learns from."""
SAMPLINGS = {1.0: "Poisson", 0.3: "hierarchical"}
ATTACKED = (
    f"Membership of one image in a release of {PEOPLE}. Proved: a lower bound on ε at δ = {DELTA:g}; all hold together "
    f"with probability {1 - FALSE_ALARM:g}. Heads are least-squares classifiers, attacked by their score of the "
    f"target's class, with a threshold from {PILOTS} further heads a side. Noise is seeded and protects nobody."
)
INVERTED = (
    "Which image is in a row. Rank: how far up a member of a row comes among about 1000 images that are not in it, "
    f"ordered by likeness to the row, in %; 50 is chance. {ROWS} of {POPULATION} rows of {POPULATION} images, δ = "
    f"{DELTA:g}. Noise is seeded and protects nobody."
)


@dataclass(frozen=True)
class Released:
    """Rows as they leave the node, the parts of the run that made them, and the (private) people in each row."""

    rows: torch.Tensor
    parts: Assembly
    members: list[np.ndarray]

    @property
    def examples(self) -> RowExamples:
        """Training examples in the rows."""
        return self.parts.solved.examples(self.rows)


def released(plan: Plan, x: torch.Tensor, labels: torch.Tensor) -> Released:
    """Release rows with the library, from one feature vector per person."""
    records = LabelledItems(x.to(torch.complex64)[:, None, None], labels)
    parts = Assembly.of(plan, records)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.jsonl") as ledger:
        ledger.start(parts.declaration())
        mechanism = parts.mechanism(CENTRAL_HOLDER, entropy_of(plan), ledger)
        node = Node(mechanism, np.arange(len(x))[:, None].tolist())
        messages, _ = do_round(replace(parts.phase, chunk=1 << 12), [node], records, Outbox(ledger), 0)
        draw = mechanism.draw(0)
    cuts = np.searchsorted(draw.rows, np.arange(1, plan.training.mixing.rows))
    return Released(messages.view(plan.training.mixing.rows, -1), parts, np.split(draw.members, cuts))


def planned(count: int, name: str, *, without_noise: bool = False, epsilon: float, **settings: Any) -> Plan:  # noqa: ANN401  (of `Mixing`)
    """Return a plan for a number of rows, with the noise for the release of the settings, or without noise.

    Its run is named inf, because no epsilon is promised for all these rows together.
    """
    calibrated = release_plan(epsilon, DELTA, Mixing(classes=CLASSES, **settings), seed=0, real=True)
    mixing = replace(calibrated.training.mixing, rows=count)
    run = replace(calibrated.run, target=Target(math.inf))
    plan = replace(calibrated, run=run, training=replace(calibrated.training, mixing=mixing), cohort=name)
    return plan.with_noise(0.0) if without_noise else plan


def membership() -> tuple[pd.DataFrame, list[dict[str, Any]]]:
    """Attack rows for the membership of one image; return the table, and curves with errors for the figure."""
    x, labels = torch.from_numpy(features("mnist", "encoder", "train")[:PEOPLE]), images("mnist", "train")[1][:PEOPLE]
    labels, rows, cases_attacked = torch.from_numpy(labels), [], []
    cases = [(1.0, True), (1.0, False), (0.3, True)]
    confidence = 1 - FALSE_ALARM / (len(cases) * len(EPSILONS) + 1)
    for epsilon, (active, alone) in product(EPSILONS, cases):
        settings = {
            "epsilon": epsilon,
            "population": PEOPLE,
            "rows": PEOPLE,
            "active": active,
            "degree": MIXED[epsilon],
        }
        scores = []
        for present in (False, True):
            plan = planned(PEOPLE * RELEASES, f"{epsilon}-{active}-{alone}-{present}", **settings)
            scores.append(_scores(plan, x, labels, active, alone=alone, present=present))
        node = plan.nodes[0]
        claimed = {NoisySum(node.expected / PEOPLE / active, node.noise_multiplier): round(PEOPLE * active)}
        errors = count_errors(*scores, 0.0, confidence=confidence)
        name = f"{SAMPLINGS[active]}, {'nobody else contributes' if alone else 'among 99 known others'}"
        rows.append(_row_of_attack("rows", name, errors, claimed, epsilon))
        cases_attacked.append({"epsilon": epsilon, "name": name, "errors": errors, "claimed": claimed})
        print(rows[-1], flush=True)
    for epsilon in (math.inf, EPSILONS[0]):
        rows.append(_heads(x, labels, epsilon, confidence))
        print(rows[-1], flush=True)
    return pd.DataFrame(rows), cases_attacked


def _scores(
    plan: Plan, x: torch.Tensor, labels: torch.Tensor, active: float, *, alone: bool, present: bool
) -> np.ndarray:
    """Return the attacker's score of each of many independent releases by one plan."""
    features = x.clone()
    if alone:
        features[1:] = math.nan  # what is not finite contributes nothing
    if not present:
        features[0] = math.nan
    release = released(plan, features, labels)
    contributions = release.parts.solved(x.to(torch.complex64)[:, None, None, None], labels[:, None])
    rows, schedule = release.rows, release.parts.solved.schedule
    if schedule is not None:
        rows = rows[torch.from_numpy(schedule[:, labels[0]])]
    node = plan.nodes[0]
    attack = RowAttack(
        contributions[0],
        node.expected / PEOPLE / active,
        node.expected,
        node.noise_multiplier * plan.clip,
        None if alone else contributions[1:],
    )
    return attack.scores(rows.view(RELEASES, -1, rows.shape[1]))


def _row_of_attack(what: str, name: str, errors: Any, claimed: dict, epsilon: float) -> dict[str, Any]:  # noqa: ANN401  (two classes)
    """Return a line of the table: the claim, what the errors prove, and what they suggest."""
    proved, seen = (
        Claim(claimed, DELTA).epsilon_of(*pair) if claimed else math.nan
        for pair in ((errors.alpha.upper, errors.beta.upper), (errors.alpha.share, errors.beta.share))
    )
    return {
        "attacked": what, "how": name, "claimed": composition.epsilon(claimed, DELTA) if claimed else epsilon,
        "proved": proved, "seen": seen, "false_alarms": errors.alpha.share, "misses": errors.beta.share,
        "trials": errors.trials_in,
    }  # fmt: skip


def _heads(x: torch.Tensor, labels: torch.Tensor, epsilon: float, confidence: float) -> dict[str, Any]:
    """Attack linear classifiers that learnt from rows by least squares, by their score of the target's class."""
    settings = {"epsilon": min(epsilon, EPSILONS[0]), "population": PEOPLE, "rows": PEOPLE}
    trials = HEADS + PILOTS
    losses = []
    for present in (False, True):
        plan = planned(PEOPLE * trials, f"heads-{epsilon}-{present}", without_noise=epsilon == math.inf, **settings)
        features = x.clone()
        if not present:
            features[0] = math.nan
        examples = released(plan, features, labels).examples
        scores = []
        for part in range(trials):
            rows_of_release = slice(part * PEOPLE, (part + 1) * PEOPLE)
            values, shares = examples.features[rows_of_release].real.double(), examples.labels[rows_of_release].double()
            gram = values.T @ values + RIDGE * PEOPLE * torch.eye(values.shape[1], dtype=torch.float64)
            scores.append(float(x[0].double() @ torch.linalg.solve(gram, values.T @ shares[:, labels[0]])))
        losses.append(np.array(scores))
    pilots = [one_side[:PILOTS] for one_side in losses]
    threshold = float(np.median(np.concatenate(pilots)))
    errors = count_errors(losses[0][PILOTS:], losses[1][PILOTS:], threshold, confidence=confidence)
    node = plan.nodes[0]
    claimed = {} if epsilon == math.inf else {NoisySum(node.expected / PEOPLE, node.noise_multiplier): PEOPLE}
    return _row_of_attack("heads", "Poisson, score of the target's class", errors, claimed, epsilon)


def decoder() -> nn.Module:
    """Return a network that draws a digit from its features; it learns from simulated digits, which are public."""
    pixels, _ = simulated_digits(DIGITS, encoder().recipe["seed"], 10_000)
    features_of_digits = encoder().unit_features(pixels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(features_of_digits.shape[1], 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid()
        )
        optimiser = torch.optim.Adam(network.parameters(), 2e-3)
        for _ in range(15):
            for part in torch.randperm(len(features_of_digits)).split(64):
                optimiser.zero_grad()
                (network(features_of_digits[part]) - pixels[part].flatten(1)).square().mean().backward()
                optimiser.step()
    return network.requires_grad_(requires_grad=False)


def inversion() -> tuple[pd.DataFrame, Figure]:
    """Invert rows by degree of mixing and noise; return how well members are found, and the pictures."""
    labels, pictures, rows = torch.from_numpy(images("mnist", "train")[1][:POPULATION]), {}, []
    read = decoder()
    for kind in ("pixels", "encoder"):
        x = torch.from_numpy(features("mnist", kind, "train")[:POPULATION])
        for degree, epsilon in product(DEGREES, (math.inf, *EPSILONS)):
            settings = {"epsilon": min(epsilon, EPSILONS[0]), "population": POPULATION, "degree": float(degree)}
            plan = planned(ROWS, f"{kind}-{degree}", without_noise=epsilon == math.inf, **settings)
            release = released(plan, x, labels)
            values = release.examples.features.real
            row = {"features": kind, "degree": degree, "epsilon": epsilon, "rank": _rank(values, x, release.members)}
            rows.append(row)
            print(row, flush=True)
            first = next(number for number, members in enumerate(release.members) if len(members) == degree)
            pixels = values[first] if kind == "pixels" else read(functional.normalize(values[first], dim=0))
            pictures[kind, degree, epsilon] = pixels.view(28, 28).numpy()
            if (kind, epsilon) == ("pixels", math.inf):
                pictures[kind, degree, "member"] = images("mnist", "train")[0][release.members[first][0]]
    return pd.DataFrame(rows), _pictures(pictures)


def _rank(values: torch.Tensor, x: torch.Tensor, members_of_rows: list[np.ndarray]) -> float:
    """Return the rank of a row's member among people who are not in the row, in %: 50 is chance, 100 is the top.

    People are ranked by the inner product of their features with the row's features, after the mean is subtracted.
    """
    random, centre, shares = stream(0, Purpose.IMAGES), x.mean(dim=0), []
    for row, members in zip(values, members_of_rows, strict=True):
        if len(members):
            others = np.setdiff1d(random.integers(0, len(x), CANDIDATES), members)
            alike = (x[np.append(others, members[0])] - centre) @ row
            shares.append(float((alike[:-1] < alike[-1]).float().mean()))
    return 100 * float(np.mean(shares))


def _pictures(pictures: dict[tuple, np.ndarray]) -> Figure:
    columns = [("pixels", "member"), *product(("pixels", "encoder"), (math.inf, *EPSILONS))]
    names = {"member": "one of the images", math.inf: "no noise", **{e: f"ε = {e:g}" for e in EPSILONS}}
    with figure_style():
        figure = blank(6.4, h_pad=0.04, w_pad=0.04)
        for line, degree in zip(figure.subplots(len(DEGREES), len(columns)), DEGREES, strict=True):
            for panel, (kind, what) in zip(line, columns, strict=True):
                panel.imshow(pictures[kind, degree, what], cmap="gray_r")
                panel.set(xticks=[], yticks=[])
                if degree == DEGREES[0]:
                    head = "" if what == "member" else "pixels: " if kind == "pixels" else "features: "
                    panel.set_title(wrap_text(head + names[what], SMALL, 1.1), fontsize=SMALL)
            line[0].set_ylabel(f"m = {degree}", fontsize=SMALL)
        set_title(figure, "What a released row shows: pixels as they are, and features by a public decoder")
        text = (
            f"Rows of MNIST, {POPULATION} images and rows, m images a row on average, δ = {DELTA:g}, seeded noise. "
            "Grey levels are scaled in each picture. The image on the left is in the row next to it; the other rows of "
            "its line are other draws."
        )
        explained(figure, text)
    return figure


def curves(attacked: list[dict[str, Any]]) -> Figure:
    """Draw the errors of membership attacks and the region that the claim allows."""
    alphas = np.linspace(0, 1, 101)
    with figure_style():
        figure = blank(5.6, h_pad=0.08, w_pad=0.08)
        for panel, epsilon in zip(figure.subplots(1, len(EPSILONS)), EPSILONS, strict=True):
            cases = [case for case in attacked if case["epsilon"] == epsilon]
            for case, style, colour, marker in zip(
                cases, ("-", None, "--"), ("#000000", "#0072B2", "#D55E00"), "osD", strict=True
            ):
                errors = case["errors"]
                if style:
                    least = composition.trade_off(case["claimed"], alphas)
                    sampling = case["name"].split(",")[0]
                    panel.plot(alphas, least, style, color=colour, linewidth=1.2, label=f"claimed, {sampling}")
                panel.plot(errors.alpha.share, errors.beta.share, marker, color=colour, label=f"attack: {case['name']}")
                panel.plot([errors.alpha.lower, errors.alpha.upper], [errors.beta.share] * 2, color=colour)
                panel.plot([errors.alpha.share] * 2, [errors.beta.lower, errors.beta.upper], color=colour)
            panel.plot([0, 1], [1, 0], ":", color="#999999", label="guessing")
            panel.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="false alarms", ylabel="misses")
            panel.set_title(f"ε = {epsilon:g}", loc="left")
            panel.legend(loc="upper right", fontsize=SMALL, frameon=False)
        set_title(figure, "Membership inference on released rows: no attack may come below its line")
        text = (
            f"{PEOPLE} images of MNIST, {PEOPLE} rows, {RELEASES} releases on each side, δ = {DELTA:g}, seeded noise. "
            f"Limits of all points hold together with probability {1 - FALSE_ALARM:g}."
        )
        explained(figure, text)
    return figure


def main() -> None:
    """Attack, and write tables and figures."""
    arguments = parser_of(__doc__, "neuromixgdp").parse_args()
    source = origin(described("MNIST, training images, not simulated"), "0")
    ranks, pictures = inversion()
    write_table(arguments.output / "inversion", ranks, laid_out(INVERTED, ranks), source)
    save_figure(pictures, arguments.output / "inversion.svg")
    members, attacked = membership()
    write_table(arguments.output / "membership", members, laid_out(ATTACKED, members), source)
    save_figure(curves(attacked), arguments.output / "membership.svg")


if __name__ == "__main__":
    ended(main)
