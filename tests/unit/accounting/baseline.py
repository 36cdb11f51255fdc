"""Releases and figures of every run of every scenario, stored as plain numbers.

Run ``python tests/unit/accounting/baseline.py`` from the repository's root to write ``baseline.json`` anew. The file
holds only numbers and the names of scenarios and runs, so it can be compared with code that has other classes. It is
made anew only when a scenario or the list of seeding values changes on purpose, and never to accept another epsilon.

A release is ``[sampling probability, level, dimension, units, count]``. The level is the noise multiplier of a noisy
sum, which has dimension zero, or the concentration of a direction. Units above one are those of one person, each drawn
independently. An exposure is a list of releases and a delta; ``epsilon`` and ``rdp`` are its figures.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from zetadp.account.attempts import Attempt
from zetadp.account.exposure import Run, run_of, seen_by
from zetadp.accounting import composition
from zetadp.accounting.laws import kind_of
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import write_text
from zetadp.base.tensors import Layout
from zetadp.config.load import load_config, read_overlaid
from zetadp.nn.models import build
from zetadp.training.plan import FORMAT, Plan
from zetadp.training.promise import noise_of_plan
from zetadp.training.seeding import seeding_of
from zetadp.training.task import task_of

ROOT = Path(__file__).parents[3]
FILE = Path(__file__).with_suffix(".json")
HASH = 16
"""Number of digits of a stored hash."""

SCENARIOS = sorted([*ROOT.glob("workflow/scenarios/*.yaml"), *ROOT.glob("papers/*/scenarios/*.yaml")])


def plans() -> Iterator[tuple[str, Plan]]:
    """Yield the plan of every run, before its noise is known, with the name of its scenario."""
    for scenario in (None, *SCENARIOS):
        files = [ROOT / "config.yaml", *([] if scenario is None else [scenario])]
        config = load_config(read_overlaid(files))
        for run in config.run_names:
            yield "" if scenario is None else scenario.stem, config.plan(run)


def computed_on() -> list[str]:
    """Return what last bits depend on: versions of libraries, and the instructions that the processor has."""
    found = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    return [np.__version__, scipy.__version__, platform.machine(), *found]


def events_of(plan: Plan) -> list[list[Any]]:
    """Return the constants of every round, node by node: N, R, sampling probability, noise, clip and count."""
    first = [plan.event(node.name, 0) for node in plan.nodes]
    return [
        [e.population, e.expected, e.sampling_probability, e.noise_multiplier, number_of(e.clip), e.count]
        for e in first
    ]


def dimension_of(plan: Plan) -> int:
    """Return the number of real weights, which is that of a direction."""
    return sum(Layout.of(build(plan.network, task_of(plan.task).outputs, 64, stream(0, Purpose.WEIGHTS))).sizes)


def recorded(plan: Plan) -> Run:
    """Return the whole run as its ledger will record it."""
    events = [plan.event(node.name, number) for node in plan.nodes for number in range(plan.training.rounds)]
    if plan.training.mechanism != "gaussian" and plan.target.private:
        dimension = dimension_of(plan)
        kinds = kind_of(plan.training.mechanism)
        events = [replace(event, kind=kinds.hiding(event.kind, dimension)) for event in events]
    return run_of("run", Attempt(plan.declaration(), events))


def release(kind: Any, count: int) -> list[float]:
    """Return one kind of release as plain numbers."""
    level = kind.noise_multiplier if kind.gaussian else kind.concentration
    return [kind.sampling_probability, level, kind.length or 0, kind.units, count]


def number_of(value: float) -> float | str:
    """Return a number that JSON can hold."""
    return value if math.isfinite(value) else str(value)


def main() -> None:
    """Write the file."""
    numbers: dict[str, int] = {}
    exposures: list[str] = []

    def number(mechanisms: Mapping[Any, int], delta: float) -> int:
        """Return the number of an exposure, in the order in which they are met, and note the figures of a new one."""
        releases = sorted(release(kind, count) for kind, count in mechanisms.items())
        met = json.dumps([releases, delta])
        if met not in numbers:
            numbers[met] = len(exposures)
            epsilon, rdp = (figure(mechanisms, delta) for figure in (composition.epsilon, composition.epsilon_rdp))
            figures = {"epsilon": number_of(epsilon), "rdp": number_of(rdp)}
            exposures.append(json.dumps({"releases": releases, "delta": delta, **figures}))
        return numbers[met]

    rows: dict[str, dict[str, Any]] = {}
    noises: dict[str, float] = {}
    for scenario, plan in plans():
        constants = plan.for_calibration().digest
        if plan.target.private and constants not in noises:
            noises[constants] = noise_of_plan(plan)
        complete = plan.with_noise(noises.get(constants, 0.0))
        name = plan.run
        key = f"{scenario} {name.network} {name.arm} {name.target}"
        if key not in rows:
            run = recorded(complete)
            audiences = ("server", "messages", "node", "reader")
            seen = {each: seen_by(run, each) for each in audiences}
            rows[key] = {
                "scenario": scenario, "network": name.network, "arm": name.arm, "epsilon": str(name.target),
                "delta": plan.delta, "rounds": plan.training.rounds, "noise": noises.get(constants, 0.0),
                "units_of_a_person": plan.units_of_a_person,
                "events": events_of(complete),
                "exposures": {
                    audience: sorted({number(each, plan.delta) for each in found.values()})
                    for audience, found in seen.items() if found
                },
                "seeds": {},
            }  # fmt: skip
            if plan.units_of_a_person > 1:
                persons = (composition.grouped(each, plan.units_of_a_person) for each in seen["messages"].values())
                rows[key]["exposures"]["person"] = sorted({number(each, plan.delta) for each in persons})
        rows[key]["seeds"][str(name.seed)] = [complete.digest[:HASH], seeding_of(complete)[:HASH]]
    runs = [json.dumps(each) for each in rows.values()]
    write_text(
        FILE,
        '{"computed_on": '
        + json.dumps(computed_on())
        + f', "plan_format": {FORMAT},\n"exposures": [\n'
        + ",\n".join(exposures)
        + '\n],\n"runs": [\n'
        + ",\n".join(runs)
        + "\n]}\n",
    )


if __name__ == "__main__":
    main()
