"""Measure how time and memory of a round grow with patients, images, nodes, image side and width of the network.

One size grows at a time, and the others stay small. The time is that of a whole simulated round: all patients are
drawn, each gives one clipped gradient, the gradients are summed, the ledger gets an entry, every node adds noise, and
the server takes its step. Each point is measured in a separate process. Its memory is the peak that the rounds add to
this process.

Time is fitted as a power of the work, and memory as a power of the growing size, both by least squares of logarithms.
The work is the number of multiplications in the network's linear maps, over all images. Every node holds one patient,
so more nodes also mean more patients. An exponent of at most one means that time does not grow faster than the work. An
exponent below one means that a part of the time is constant. The last exponent, between the two largest points, shows
the trend.

    python -m benchmarks.growth
    python -m benchmarks.growth --axes patients nodes --repetitions 5
    python -m benchmarks.growth --redraw    # draw the figure only, from the existing table
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.step import added_memory, declared
from zetadp.account.declaration import Declaration
from zetadp.account.ledger import Ledger
from zetadp.accounting.events import Event
from zetadp.accounting.kinds import NoisySum
from zetadp.base.storage import write_text
from zetadp.base.tensors import Layout, keep_freed_memory
from zetadp.mechanism.release import NodeMechanism
from zetadp.nn.models import NetworkSettings, build
from zetadp.report.figurestyle import GREY, SMALL, WIDTH, figure_style, save_svg, set_title, wrap_text
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.training.outbox import Outbox
from zetadp.training.records import LabelledItems, Node, items_of
from zetadp.training.round import Phase, do_round
from zetadp.training.server import Server
from zetadp.training.settings import OptimiserSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).parents[1] / "docs/results/benchmarks"
USUAL = {"patients": 24, "images": 4, "nodes": 1, "side": 32, "width": 8}
AXES = {
    "patients": (50, 150, 500, 1500, 5000),
    "images": (4, 8, 20, 40, 80),
    "nodes": (1, 3, 10, 30, 100, 300, 1000),
    "side": (32, 64, 128, 256),
    "width": (8, 16, 32, 64),
}
LABELS = {
    "patients": "patients",
    "images": "images per patient",
    "nodes": "nodes with one patient",
    "side": "side of an image",
    "width": "width of the first block",
}
RECORDS = 50
"""Number of different records. Patients share them, because only the number of patients matters here."""


class Federation:
    """A small federation that repeats its round.

    Parameters
    ----------
    patients, images, nodes, side, width
        Sizes of the federation. Patients are divided evenly among nodes.
    folder
        Folder for the ledger.
    """

    def __init__(self, patients: int, images: int, nodes: int, side: int, width: int, folder: Path) -> None:
        random = np.random.default_rng(0)
        settings = NetworkSettings(widths=(width, 2 * width), convolutions=1, head="pooled", groups=4)
        self.model = build(settings, 4, side, random)
        self.layout = Layout.of(self.model)
        start = self.layout.flatten(dict(self.model.named_parameters())).detach()
        self.server = Server(start, OptimiserSettings(), 1000)
        shape = (RECORDS, images, side, side)
        values = torch.complex(*(torch.from_numpy(random.standard_normal(shape, dtype=np.float32)) for _ in range(2)))
        self.records = LabelledItems.stacked(values.unsqueeze(2), torch.arange(4).repeat_interleave(images // 4))
        self.ledger = Ledger(folder / "ledger.jsonl")
        self.ledger.start(Declaration(cohort_unit="patient", delta=1e-3, noise="seeded", training={"rounds": 1}))
        members_of = [range(index, patients, nodes) for index in range(nodes)]
        everybody = NoisySum(1.0, 42.55)
        events = [
            Event(f"node-{index}", 0, len(members_of[index]), len(members_of[index]), 1.0, everybody)
            for index in range(nodes)
        ]
        self.nodes = [
            Node(
                NodeMechanism(event, node_index=index, seed=0, ledger=self.ledger),
                items_of([(member % RECORDS,) for member in members], images),
            )
            for index, (event, members) in enumerate(zip(events, members_of, strict=True))
        ]
        self.images, self.number = images, 0
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            self.model(values[:1, :1].flatten(0, 1).unsqueeze(1))
        self.work = counter.get_total_flops() / 2 * patients * images

    def __call__(self) -> None:
        """Compute, record and release a round of all nodes, and move the server's weights."""
        phase = Phase.of(self.model, self.images)
        messages, _ = do_round(phase, self.nodes, self.records, Outbox(self.ledger), self.number)
        self.server.step(messages, self.number)
        self.number += 1


def point(task: dict[str, Any]) -> None:
    """Print work, seconds and memory of one point."""
    torch.set_num_threads(task["threads"])
    with tempfile.TemporaryDirectory() as folder:
        small, whole = Path(folder) / "small", Path(folder) / "whole"
        Federation(**{**USUAL, "patients": 1}, folder=small)()  # loads libraries and fills tables
        federation = Federation(**task["sizes"], folder=whole)
        memory = added_memory(federation, torch.device("cpu"))
        clock = time.thread_time if task["clock"] == "cpu" else time.perf_counter
        times = []
        for _ in range(task["repetitions"]):
            began = clock()
            federation()
            times.append(clock() - began)
    print(json.dumps({"work": federation.work, "seconds": float(np.median(times)), "memory_mb": memory}))


def exponent(x: pd.Series[float], y: pd.Series[float]) -> float:
    """Return the exponent of the power of ``x`` that fits ``y`` best."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def add_exponents(table: pd.DataFrame) -> None:
    """Add the fitted exponents to the rows of each growing size."""
    for axis, group in table.groupby("axis"):
        # Less than a megabyte is memory that an earlier step released.
        last, large = group.iloc[-2:], group[group["memory_mb"] > 1]
        fits = {
            "time_exponent": exponent(group["work"], group["seconds"]),
            "last_time_exponent": exponent(last["work"], last["seconds"]),
            "memory_exponent": exponent(large["value"], large["memory_mb"]),
        }
        for name, value in fits.items():
            table.loc[table["axis"] == axis, name] = round(value, 3)


def draw_figure(table: pd.DataFrame) -> Figure:
    """Draw time against work, and memory against the growing size, with their exponents and fits."""
    axes = list(dict.fromkeys(table["axis"]))
    with figure_style():
        figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
        grid = figure.subplots(2, len(axes), squeeze=False, sharey="row")
        for column, axis in enumerate(axes):
            lines = table[table["axis"] == axis]
            fitted, last = lines[["time_exponent", "last_time_exponent"]].iloc[0]
            _draw_powers(grid[0, column], lines["work"], lines["seconds"], fitted)
            title = f"{LABELS[axis]}\ntime: exponent {fitted:.2f},\nlast step {last:.2f}"
            grid[0, column].set_title(title, loc="left", fontsize=SMALL)
            grid[0, column].set_xlabel("work, multiplications", fontsize=SMALL)
            decades = np.log10(lines["work"])  # whole ones, so that at least two are marked
            grid[0, column].set_xlim(10 ** np.floor(decades.min()), 10 ** np.ceil(decades.max()))
            # Less than a megabyte is memory that an earlier step released.
            large, fitted = lines[lines["memory_mb"] > 1], lines["memory_exponent"].iloc[0]
            _draw_powers(grid[1, column], large["value"], large["memory_mb"], fitted)
            grid[1, column].set_title(f"memory: exponent {fitted:.2f}", loc="left", fontsize=SMALL)
            grid[1, column].set_xlabel(LABELS[axis], fontsize=SMALL)
            ticks = list(lines["value"])[:: max(1, len(lines) // 3)]
            grid[1, column].set_xticks(ticks, [str(tick) for tick in ticks])
        grid[0, 0].set_ylabel("seconds per round")
        grid[1, 0].set_ylabel("added memory, MB")
        set_title(figure, "Time and memory of a round as one size grows")
        meaning = (
            "Above: time against work, with the exponent of time as a power of work over the whole range (dashed) and "
            "between the two largest points (last step). Below: memory against the size, with the exponent of memory "
            "as a power of the size (dashed)."
        )
        figure.supxlabel(wrap_text(meaning, SMALL, 0.97 * WIDTH), x=0.01, ha="left", fontsize=SMALL)
    return figure


def _draw_powers(panel: Axes, x: pd.Series[float], y: pd.Series[float], power: float) -> None:
    """Draw points on logarithmic axes, and the power law of a given exponent that fits them best."""
    scale = np.exp(np.mean(np.log(y)) - power * np.mean(np.log(x)))
    panel.loglog(x, scale * x**power, color=GREY, linestyle="--", linewidth=1.2, zorder=1)
    panel.loglog(x, y, marker="o", color="#0072B2", linewidth=1.5, clip_on=False)
    panel.minorticks_off()


def main() -> None:
    """Measure all points, fit, and write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: of this thread; one thread only")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "growth.csv", help="table; the figure is written next to it"
    )
    parser.add_argument("--redraw", action="store_true", help="draw the table of an earlier run, without measuring")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.clock == "cpu" and chosen.threads != 1:
        parser.error("--clock cpu needs --threads 1")
    keep_freed_memory()
    if chosen.point:
        point(json.loads(chosen.point))
        return
    if not chosen.redraw:
        write_text(chosen.output, to_csv(measure_all(chosen), origin(*declared()), float_format="%.6g"))
    table = pd.read_csv(chosen.output, comment="#")
    save_svg(draw_figure(table), chosen.output.with_suffix(".svg"))
    print(f"\n{table.to_string(index=False)}\nwritten to {chosen.output}")


def measure_all(chosen: argparse.Namespace) -> pd.DataFrame:
    """Measure every point in a separate process, and fit."""
    lines = []
    for axis in chosen.axes:
        for value in AXES[axis]:
            sizes = {**USUAL, axis: value}
            if axis == "nodes":
                sizes["patients"] = value
            task = {"sizes": sizes, **{key: getattr(chosen, key) for key in ("threads", "clock", "repetitions")}}
            command = [sys.executable, __file__, "--point", json.dumps(task)]
            process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            lines.append({"axis": axis, "value": value, **json.loads(process.stdout)})
            print(lines[-1], flush=True)
    table = pd.DataFrame(lines)
    add_exponents(table)
    return table


if __name__ == "__main__":
    main()
