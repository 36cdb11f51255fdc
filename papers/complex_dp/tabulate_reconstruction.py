"""Compare privately trained networks for accelerated MRI with methods that use no private patient.

    python -m papers.complex_dp.tabulate_reconstruction

writes table.csv, table.md and images.svg from the runs of the scenario reconstruction.yaml. It also computes the
epsilon per patient that follows from the epsilon per slice of Ziller et al. (paper.csv).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from papers.complex_dp.baselines import compressed_sensing, zero_filled
from papers.complex_dp.printed import ZILLER, as_added, as_claimed
from papers.complex_dp.reconstruction.pretraining import public_slices
from papers.complex_dp.reconstruction.public import PublicNetworks
from papers.complex_dp.reconstruction.settings import SEED
from papers.experiments import Experiment, declared_by, ended, parser_of, save_figure, write_table
from zetadp.accounting import composition
from zetadp.accounting.kinds import NoisySum
from zetadp.base.epsilon import Target
from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import read_json, write_text
from zetadp.base.tables import MISSING, Sheet
from zetadp.mri.similarity import nmse, psnr, ssim
from zetadp.nn.models import build
from zetadp.report.figurestyle import WIDTH, figure_style, set_title
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv
from zetadp.training.evaluation import outputs_of
from zetadp.training.metrics import percentile_interval, resamples
from zetadp.training.partition import read_partition
from zetadp.training.pretrained import load_model
from zetadp.training.task import pipeline_task_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from papers.complex_dp.reconstruction.task import Reconstruction
    from zetadp.nn.settings import NetworkSettings

SCENARIO = "reconstruction"
PUBLIC_FILE = Path("resources/public-volumes/networks.safetensors")
WEIGHTS = (0.01, 0.03, 0.1)
"""Weights of total variation that are tried on public patients."""
TRIED = 8
ITERATIONS = 60
METRICS = ("SSIM", "NMSE", "PSNR")
PUBLIC, PRIVATE, WITHOUT_NOISE = "public network alone", "small part trained", "small part trained, no noise"
TRAINED = {
    (PRIVATE, "1"): "tuned",
    (PRIVATE, "8"): "tuned",
    (WITHOUT_NOISE, "inf"): "tuned",
    ("all weights trained, from random ones", "8"): "scratch",
    ("real twin, small part trained", "8"): "twin",
}
"""Network of the scenario, by method and epsilon."""
SLICES = 36
"""Approximate number of slices in a volume of fastMRI."""
COARSE = 1.0
"""Tolerance at which the accountant stops after halving its grid once."""


class Tested(NamedTuple):
    """Slices of the test patients, and the public ones.

    Attributes
    ----------
    task
        The task.
    kspace, targets
        Shape (slice, row, column).
    volumes
        Rows of each patient's slices; every patient has one volume.
    """

    task: Reconstruction
    kspace: np.ndarray
    targets: np.ndarray
    volumes: dict[str, np.ndarray]

    @classmethod
    def of(cls, experiment: Experiment) -> Tested:
        """Read what the scenario made."""
        config = experiment.config
        task = pipeline_task_of({"name": SCENARIO, **config.task.settings})
        cohort = Path("resources") / config.cohort.name
        partition = read_partition(cohort / f"partitions/{config.name}.csv")
        records = task.load([cohort / "slices.h5"], partition, "test", torch.device("cpu"))
        volumes = {str(who): rows.index.to_numpy() for who, rows in records.items.groupby("patient")}
        return cls(task, records.inputs[:, 0].numpy(), records.targets.numpy(), volumes)

    def measured(self, images: np.ndarray) -> dict[str, dict[str, float]]:
        """Return each metric of each patient."""
        measures: dict[str, dict[str, float]] = {name: {} for name in METRICS}
        for who, rows in self.volumes.items():
            target, image = self.targets[rows], images[rows]
            values = (ssim(target, image).mean(), nmse(target, image), psnr(target, image))
            for name, value in zip(METRICS, values, strict=True):
                measures[name][who] = float(value)
        return measures


def best_weight(task: Reconstruction) -> float:
    """Return the weight of total variation that gives public patients the smallest error."""
    # Every patient has at least one slice, so no more patients are needed.
    settings = replace(PublicNetworks.load(PUBLIC_FILE).settings, patients=TRIED)
    kspace, target = (part[:TRIED].numpy() for part in public_slices(settings, task.size))
    random = stream(SEED, Purpose.IMAGES)
    seen = kspace * np.stack([task.masks().draw(task.size, random) for _ in kspace])[:, None]
    errors = {weight: nmse(target, compressed_sensing(seen, weight, ITERATIONS)) for weight in WEIGHTS}
    print(f"NMSE on public patients by weight of total variation: {errors}", flush=True)
    return min(errors, key=errors.__getitem__)


def network_images(tensors: dict[str, torch.Tensor], settings: NetworkSettings, tested: Tested) -> np.ndarray:
    """Return the images that a network with the given weights reconstructs."""
    model = build(settings, 1, tested.task.size, stream(0, Purpose.WEIGHTS)).eval()
    model.load_state_dict(tensors)
    return outputs_of(model, torch.from_numpy(tested.kspace)[:, None]).numpy()


def untrained(tested: Tested) -> dict[str, Callable[[], np.ndarray]]:
    """Return a function for each method that uses no private patient. It reconstructs the images."""
    public = PublicNetworks.load(PUBLIC_FILE)
    methods: dict[str, Callable[[], np.ndarray]] = {
        "zero-filled": lambda: zero_filled(tested.kspace),
        "compressed sensing": lambda: compressed_sensing(tested.kspace, best_weight(tested.task), ITERATIONS),
    }
    for family, name in {"unet": PUBLIC, "real_unet": "real twin, public network alone"}.items():
        network = public.settings.network(family)
        methods[name] = partial(network_images, public.start(network), network, tested)
    return methods


class Measured(NamedTuple):
    """The results of a method.

    Attributes
    ----------
    values
        Each metric of each patient, averaged over seeds.
    spread
        Standard deviation over seeds of each metric's mean. NaN with one seed.
    seeds
        Number of seeds.
    epsilon
        Largest epsilon of the runs.
    """

    values: dict[str, dict[str, float]]
    spread: dict[str, float]
    seeds: int
    epsilon: float


def of_runs(experiment: Experiment, network: str, epsilon: str) -> Measured:
    """Return the results of a network's runs."""
    runs = experiment.metrics(network, "central", epsilon)
    keys = {"SSIM": "per_patient", "NMSE": "per_patient_nmse", "PSNR": "per_patient_psnr"}
    frames = {name: pd.DataFrame([run[key] for run in runs.values()]) for name, key in keys.items()}
    names = experiment.cells[network, "central", epsilon]
    stated = [read_json(experiment.folder(run).privacy)["epsilon"] for run in names]
    return Measured(
        {name: frame.mean().to_dict() for name, frame in frames.items()},
        {name: float(frame.mean(axis=1).std()) for name, frame in frames.items()},
        len(runs),
        math.inf if epsilon == "inf" else max(map(float, stated)),
    )


def resampled(values: dict[str, float]) -> np.ndarray:
    """Return means over resamples of patients, the same resamples for every method."""
    of_patients = np.array([values[who] for who in sorted(values)])
    return np.asarray(resamples(len(of_patients), stream(0, Purpose.BOOTSTRAP)) @ of_patients / len(of_patients))


def collected(experiment: Experiment, tested: Tested, images: dict[str, np.ndarray]) -> pd.DataFrame:
    """Return one row per method: metrics, intervals, epsilon, and share of the gain from public to without noise."""
    measured: dict[tuple[str, str], Measured] = {}
    for name, rebuilt in images.items():
        measured[name, "0"] = Measured(tested.measured(rebuilt), dict.fromkeys(METRICS, math.nan), 1, 0.0)
    for (name, epsilon), network in TRAINED.items():
        measured[name, epsilon] = of_runs(experiment, network, epsilon)
    rows = []
    start, goal = measured[PUBLIC, "0"].values, measured[WITHOUT_NOISE, "inf"].values
    for (name, epsilon), (values, spread, seeds, spent) in measured.items():
        row: dict[str, Any] = {"method": name, "epsilon": epsilon, "epsilon_stated": spent, "seeds": seeds}
        for metric in METRICS:
            low, high = percentile_interval(resampled(values[metric]))
            row |= {metric: np.mean(list(values[metric].values())), f"{metric}_std": spread[metric]}
            row |= {f"{metric}_low": low, f"{metric}_high": high}
        if name == PRIVATE:
            for metric in ("SSIM", "NMSE"):
                way = resampled(goal[metric]) - resampled(start[metric])
                gained = resampled(values[metric]) - resampled(start[metric])
                whole = np.mean(list(goal[metric].values())) - np.mean(list(start[metric].values()))
                low, high = percentile_interval(gained / way)
                row |= {f"way_{metric}": (row[metric] - np.mean(list(start[metric].values()))) / whole}
                row |= {f"way_{metric}_low": low, f"way_{metric}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def sheet(frame: pd.DataFrame, patients: int) -> Sheet:
    """Lay the table out, one line per method."""

    def cell(row: pd.Series, metric: str, digits: int, scale: float = 1.0) -> str:
        values = (scale * row[metric], scale * row[f"{metric}_low"], scale * row[f"{metric}_high"])
        mean, low, high = (f"{value:.{digits}f}" for value in values)
        spread = row.get(f"{metric}_std", math.nan)
        return mean + ("" if pd.isna(spread) else f" ± {spread:.{digits}f}") + f" ({low} to {high})"

    def way(row: pd.Series, metric: str) -> str:
        return MISSING if pd.isna(row.get(f"way_{metric}")) else cell(row, f"way_{metric}", 0, 100)

    lines = tuple(
        (
            str(row["method"]),
            "0" if row["epsilon"] == "0" else Target.named(row["epsilon"]).short,
            cell(row, "SSIM", 3),
            cell(row, "NMSE", 4),
            cell(row, "PSNR", 2),
            way(row, "SSIM"),
            way(row, "NMSE"),
        )
        for _, row in frame.iterrows()
    )
    notes = (
        f"Means over the volumes of {patients} test patients and over seeds, metrics as fastMRI defines them: SSIM and "
        "PSNR (dB) are better when larger, NMSE when smaller. ±: standard deviation over seeds. In brackets: 95% "
        "interval, bootstrap over test patients, jointly over seeds. It does not cover how results vary with other "
        "training patients.",
        "ε is per patient, with all slices, at δ = 0.001, of one run; 0: no private patient was used. Whoever sees "
        "several runs learns more.",
        "Way: how much of the distance from the public network alone to the same training without noise is covered, in "
        "%.",
        "ε = ∞: gradients are clipped but get no noise. Noise is seeded: it simulates the guarantee.",
    )
    headings = ("method", "ε", "SSIM", "NMSE", "PSNR", "way, SSIM", "way, NMSE")
    return Sheet(
        "Reconstruction of 4 times accelerated single-coil k-space, simulated patients", headings, lines, notes
    )


def of_the_paper() -> pd.DataFrame:
    """Return the true epsilons of the paper's run, for one slice and for a patient with `SLICES` slices.

    A patient with several volumes has more. All epsilons hold for Poisson sampling, which the paper did not use.
    """
    (claim,) = (candidate for candidate in ZILLER if "fastMRI" in candidate.experiment)
    rows = []
    for noise, sigma, per_slice in (
        ("as stated", claim.noise_multiplier, as_claimed(claim)),
        ("as added", claim.noise_multiplier / math.sqrt(2), as_added(claim)),
    ):
        alone = Counter({NoisySum(claim.sampling_probability, sigma): claim.rounds})
        # The finest grids take minutes and gigabytes for a million rounds. Coarser grids give larger epsilons.
        rows.append(
            {
                "noise": noise,
                "noise_multiplier": sigma,
                "printed": claim.epsilon,
                "per_slice": per_slice,
                "per_patient": composition.epsilon_group(alone, claim.delta, SLICES, tolerance=COARSE),
            }
        )
    return pd.DataFrame(rows)


def draw_images(tested: Tested, images: dict[str, np.ndarray], who: str) -> Figure:
    """Draw a slice of a patient from every method, and the error of each image."""
    middle = tested.volumes[who][len(tested.volumes[who]) // 2]
    slices = {name: rebuilt[middle] for name, rebuilt in images.items()}
    target = tested.targets[middle]
    top = float(target.max())
    worst = 0.5 * max(float(np.abs(image - target).max()) for image in slices.values())
    with figure_style():
        figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
        panels = figure.subplots(2, len(slices) + 1)
        for column, (name, image) in enumerate({**slices, "target": target}.items()):
            panels[0, column].imshow(image, cmap="gray", vmin=0, vmax=top, interpolation="nearest")
            panels[0, column].set_title(name.replace(", ", ",\n"), fontsize=7)
            error = np.abs(image - target)
            # Black is no error, white is a large one. The order remains visible if printed in grey.
            last = panels[1, column].imshow(error, cmap="inferno", vmin=0, vmax=worst, interpolation="nearest")
            panels[1, column].set_title(f"NMSE {nmse(target, image):.3f}" if column < len(slices) else "", fontsize=7)
        panels[1, -1].set_visible(False)
        for panel in panels.flat:
            panel.set_xticks([])
            panel.set_yticks([])
        panels[0, 0].set_ylabel("image")
        panels[1, 0].set_ylabel("error")
        figure.colorbar(last, ax=panels[1].tolist(), label="absolute error", shrink=0.8, pad=0.01)
        set_title(figure, f"Median test patient {who}, one slice, simulated")
    return figure


def main() -> None:
    """Write the tables and the figure."""
    parser = parser_of(__doc__, "complex_dp/reconstruction")
    parser.add_argument("--paper", action="store_true", help="write paper.csv alone, in a minute")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    write_text(
        arguments.output / "paper.csv", to_csv(of_the_paper(), origin(*declared_by(SCENARIO)), float_format="%.6g")
    )
    if not arguments.paper:
        write_runs(arguments.output)


def write_runs(output: Path) -> None:
    """Write the table of all methods, and the figure."""
    experiment = Experiment.of(SCENARIO)
    experiment.table()  # refuses runs that are not those of the scenario
    tested = Tested.of(experiment)
    images = {name: make() for name, make in untrained(tested).items()}
    frame = collected(experiment, tested, images)
    source = origin(*declared_by(SCENARIO), runs=experiment.environments())
    write_table(output / "table", frame, sheet(frame, len(tested.volumes)), source)
    chosen = {name: images[name] for name in ("zero-filled", "compressed sensing", PUBLIC)}
    for (name, epsilon), network in TRAINED.items():
        if network == "tuned":
            model = load_model(experiment.folder(experiment.cells[network, "central", epsilon][0]).model)
            rebuilt = outputs_of(model.network, torch.from_numpy(tested.kspace)[:, None]).numpy()
            chosen[f"private, ε = {epsilon}" if name == PRIVATE else "trained, no noise"] = rebuilt
    quality = of_runs(experiment, "tuned", "8").values["SSIM"]
    median = sorted(quality, key=quality.__getitem__)[len(quality) // 2]
    save_figure(draw_images(tested, chosen, median), output / "images.svg")


if __name__ == "__main__":
    ended(main)
