"""The declared and finished runs of scenarios. Other runs in a folder are ignored, and missing runs are errors."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure

from papers import sizes
from zetadp.base.runfolder import RunFolder
from zetadp.base.storage import read_json, write_text
from zetadp.base.tables import MISSING, Sheet
from zetadp.base.validation import UserError, counted
from zetadp.config.load import load_config
from zetadp.report import rendering
from zetadp.report.figurestyle import SMALL, WIDTH, figure_style, save_svg, wrap_text
from zetadp.report.provenance import cohort_shown, origin, seeds_shown
from zetadp.report.rendering import to_csv, to_markdown, to_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from zetadp.base.runfolder import RunName
    from zetadp.config.experiment import Config

ROOT = Path(__file__).parents[1]
NO_RESULT = "smoke: not a result"
"""What a smoke writes across its figures and into the titles of its tables."""


def configuration(scenario: str | None) -> Config:
    """Return the configuration of a scenario in the current size, or the default configuration."""
    return load_config(sizes.content("config.yaml" if scenario is None else scenario_file(scenario)))


def scenario_file(scenario: str) -> str:
    """Return the file of a scenario, relative to the repository: in the workflow, or in the folder of a paper."""
    files = [*ROOT.glob(f"workflow/scenarios/{scenario}.yaml"), *ROOT.glob(f"papers/*/scenarios/{scenario}.yaml")]
    if len(files) != 1:
        raise UserError(f"Expected one scenario {scenario} in workflow/scenarios and papers, found {len(files)}.")
    return files[0].relative_to(ROOT).as_posix()


def declared_by(*scenarios: str | None) -> tuple[str, str]:
    """Return cohorts and seeds of scenarios, as `zetadp.report.provenance.origin` takes them."""
    configs = [configuration(scenario) for scenario in scenarios]
    cohorts = "; ".join(cohort_shown(asdict(config.cohort), simulated=config.simulated) for config in configs)
    return cohorts, seeds_shown(int(run.seed) for config in configs for run in config.run_names)


@dataclass(frozen=True)
class Experiment:
    """A scenario and the folder of its results.

    Attributes
    ----------
    scenario
        Name of its file; None for the default.
    config
        What the file declares.
    results
        Folder with ``runs`` and ``tables``.
    """

    scenario: str | None
    config: Config
    results: Path

    @classmethod
    def of(cls, scenario: str | None, results: Path | None = None) -> Experiment:
        """Return a scenario and its results. The default folder is that of the workflow."""
        config = configuration(scenario)
        return cls(scenario, config, results or Path("results") / config.name)

    @property
    def cells(self) -> dict[tuple[str, str, str], list[RunName]]:
        """Return the declared runs of every network, arm and epsilon, in the order of their seeds."""
        cells: dict[tuple[str, str, str], list[RunName]] = {}
        for run in sorted(self.config.run_names, key=lambda run: run.seed):
            cells.setdefault((run.network, run.arm, str(run.target)), []).append(run)
        return cells

    def metrics(self, network: str, arm: str, epsilon: str) -> dict[int, dict[str, Any]]:
        """Return the ``metrics.json`` of every declared run of a network, arm and epsilon, by seed."""
        runs = self.cells.get((network, arm, epsilon))
        if runs is None:
            msg = f"Expected {self._file} to declare runs of {network}, {arm}, epsilon {epsilon}. Add them there."
            raise UserError(msg)
        return {run.seed: self._read(run) for run in runs}

    def folder(self, run: RunName) -> RunFolder:
        """Return where the workflow keeps a run."""
        return RunFolder(self.results / run.folder)

    def environments(self) -> list[dict[str, Any]]:
        """Return where every declared run was trained."""
        return [self._read(run).get("environment", {}) for run in self.config.run_names]

    def table(self) -> pd.DataFrame:
        """Return the accuracies that the workflow wrote, or refuse a table if it is not from the declared runs."""
        path = self.results / "tables/table1.csv"
        if not path.is_file():
            raise UserError(self._missing(path))
        table = pd.read_csv(path, dtype={"epsilon": str}, comment="#")
        declared = {cell: len(runs) for cell, runs in self.cells.items()}
        finished = {(row["network"], row["arm"], row["epsilon"]): row["seeds"] for _, row in table.iterrows()}
        for cell in sorted(declared.keys() | finished.keys()):
            if declared.get(cell) != finished.get(cell):
                msg = (
                    f"Expected {counted(declared.get(cell, 0), 'run')} of {', '.join(cell)} in {path}, as {self._file} "
                    f"declares, found {finished.get(cell, 0)}. {self._what_to_run}"
                )
                raise UserError(msg)
        return table

    @property
    def _file(self) -> str:
        return "config.yaml" if self.scenario is None else scenario_file(self.scenario)

    @property
    def _what_to_run(self) -> str:
        return f"Run: snakemake --cores all --configfile {self._file}"

    def _missing(self, path: Path) -> str:
        return f"Expected the finished runs that {self._file} declares, found no {path}. {self._what_to_run}"

    def _read(self, run: RunName) -> dict[str, Any]:
        path = self.folder(run).metrics
        if not path.is_file():
            raise UserError(self._missing(path))
        return read_json(path)


def write_joined(
    stem: Path,
    experiments: dict[str, Experiment],
    collect: Callable[[dict[str, Experiment]], pd.DataFrame],
    sheet: Callable[[pd.DataFrame], Sheet],
) -> None:
    """Write and print one table of several experiments, and how it was made.

    Parameters
    ----------
    stem
        Where it goes, without the endings ``.csv`` and ``.md``.
    experiments
        The experiments, by the keys that `collect` expects.
    collect, sheet
        Functions that join the tables, and that lay out the result.
    """
    table = collect(experiments)
    declared = declared_by(*(experiment.scenario for experiment in experiments.values()))
    source = origin(
        *declared,
        runs=[environment for experiment in experiments.values() for environment in experiment.environments()],
    )
    write_table(stem, table, sheet(table), source)


def marked(source: tuple[str, ...]) -> tuple[str, ...]:
    """Return how a table was made; that of a smoke says so."""
    return sizes.by_size(source, smoke=(*source, "smoke: made to see that the command runs; not a result"))


def write_table(stem: Path, frame: pd.DataFrame, sheet: Sheet, source: tuple[str, ...]) -> None:
    """Write a table and how it was made as CSV and as Markdown, to a path without these endings, and print it."""
    files = [stem.with_suffix(kind) for kind in (".csv", ".md")]
    sheet = replace(sheet, title=sizes.by_size(sheet.title, smoke=f"{sheet.title} ({NO_RESULT})"))
    rendering.write_table(files, frame, sheet, marked(source), float_format="%.6g")
    print(to_text(sheet))


def write_parts(
    stem: Path, titles: dict[str, str], parts: dict[str, pd.DataFrame], head: str, source: tuple[str, ...]
) -> None:
    """Write several tables one below the other, as CSV with a column ``part`` and as Markdown.

    Parameters
    ----------
    stem
        Where they go, without the endings ``.csv`` and ``.md``.
    titles, parts
        What each table is called, and the tables, in the order of the titles.
    head
        What stands above them in Markdown.
    source
        How they were made.
    """
    frame, source = pd.concat([parts[name].assign(part=name) for name in titles], ignore_index=True), marked(source)
    write_text(
        stem.with_suffix(".csv"), to_csv(frame[["part", *frame.columns.drop("part")]], source, float_format="%.7g")
    )
    tables = "\n".join(to_markdown(laid_out(title, parts[name])) for name, title in titles.items())
    write_text(stem.with_suffix(".md"), head + tables + "\n" + "\n".join(f"- {line}" for line in source) + "\n")
    print(f"{stem}: .csv and .md")


def laid_out(title: str, frame: pd.DataFrame, notes: tuple[str, ...] = ()) -> Sheet:
    """Return a table with the columns of a frame."""

    def text_of(value: object) -> str:
        return value if isinstance(value, str) else MISSING if pd.isna(value) else f"{value:.5g}"

    cells = tuple(tuple(map(text_of, row)) for row in frame.itertuples(index=False))
    return Sheet(title, tuple(column.replace("_", " ") for column in frame.columns), cells, notes)


def parser_of(about: str | None, folder: str) -> argparse.ArgumentParser:
    """Return the parser of a program that writes to a folder of the papers' tables, with the option ``--output``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = sizes.tables() / folder
    parser.add_argument("--output", type=Path, default=default, help="folder of the files (%(default)s)")
    return parser


def explained(figure: Figure, text: str) -> None:
    """Write a text below all panels."""
    figure.supxlabel(wrap_text(text, SMALL, 0.97 * WIDTH), x=0.01, ha="left", fontsize=SMALL)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as SVG; that of a smoke says so across all panels."""
    if sizes.current() == sizes.SMOKE:
        with figure_style():
            mark = figure.text(0.5, 0.5, NO_RESULT, fontsize=40, rotation=20, ha="center", va="center", zorder=1000)
            mark.set(color="#D55E00", alpha=0.5, gid=sizes.SMOKE, in_layout=False)
    save_svg(figure, path)


def ended(main: Callable[[], None]) -> None:
    """Run a program. A user error prints its message and ends with exit code 1."""
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
