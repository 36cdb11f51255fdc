"""Make and test the thresholds with which `zetadp predict` abstains from doubtful answers.

600 simulated patients, on whom the backbone was not trained, are divided: 300 give the class means, 150 the thresholds,
and 150 test them. The thresholds are also tested on inputs that are not brains, and on real patients if a folder is
given. These commands simulate the patients (minutes), make the package's file, and make the tables and the figure in
docs/results/abstention:

    snakemake --cores all $(printf 'resources/public-2-600-20x32/images/shard-%02d.h5 ' {0..15}) \
      --config 'pretraining={simulation: {seed: 2, patients: 600}}'
    python -m benchmarks.abstention --fit
    python -m benchmarks.abstention [--real FOLDER]

FOLDER is a task in the layout of the Decathlon.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from zetadp.base.randomness import Purpose, stream
from zetadp.base.storage import read_stack, write_text
from zetadp.base.tables import Sheet
from zetadp.base.tensors import tensors_digest
from zetadp.core.start import shipped_backbone
from zetadp.mri.decathlon import SEQUENCES, read_task
from zetadp.mri.kspace import to_kspace, whiten
from zetadp.mri.volumes import read_centre_slices
from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.nn.models import NetworkSettings, build
from zetadp.report.figurestyle import figure_style, line_look, panel_grid, save_svg, set_legend, set_title
from zetadp.report.provenance import origin
from zetadp.report.rendering import to_csv, to_markdown
from zetadp.tasks.brain_sequences.prediction import RIGHT, UNLIKE, UNSURE, Abstention, Public

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results/abstention"
SEED, PATIENTS, FIRST, SECOND = 2, 600, 300, 450
IMAGES = ROOT / f"resources/public-{SEED}-{PATIENTS}-20x32/images"
SLICES, SIZE = 20, 32
HEADS = {
    "4 components": NetworkSettings("head", "features", components=4, start="public"),
    "8 components, all layers": NetworkSettings("head", "layers", components=8, start="public"),
    "8 components, a study": NetworkSettings("head", "study", components=8, start="public"),
}
"""Public heads: of the last layer's features, of all layers' as in the default, and of all layers' of a study."""
COHORT = f"the last {PATIENTS - SECOND} of {PATIENTS} simulated public patients"


def main() -> None:
    """Make the file of the package, or the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--images", type=Path, default=IMAGES)
    parser.add_argument("--real", type=Path)
    given = parser.parse_args()
    patients = [values for file in sorted(given.images.glob("*.h5")) for values in read_stack(file).values]
    rows, curves = [], {}
    for name, head in HEADS.items():
        backbone = load_backbone(shipped_backbone(head))
        wanted = patients[:SECOND] if given.fit else patients[SECOND:]
        found = np.stack([mean_features(backbone, values) for values in wanted])
        if given.fit:
            about = {"command": "python -m benchmarks.abstention --fit", "seed": SEED, "patients": PATIENTS}
            about |= {"backbone": tensors_digest(backbone.tensors())}
            Public.fit(found[:FIRST], found[FIRST:], about).save(head.domain)
            continue
        network = build(head, len(SEQUENCES), backbone.components, stream(0, Purpose.WEIGHTS))
        network.load_state_dict(backbone.start(head))
        abstention = Abstention.of(network.eval(), Public.load(head.domain))
        rows += [{"head": name} | row for row in tried(abstention, network, backbone, found, given.real)]
        curves[name] = (abstention, network, found)
    if rows:
        write(pd.DataFrame(rows), {name: abstention for name, (abstention, _, _) in curves.items()})
        save_svg(reliability(*curves["8 components, all layers"]), RESULTS / "reliability.svg")


def tried(
    abstention: Abstention, network: torch.nn.Module, backbone: Backbone, found: np.ndarray, folder: Path | None
) -> list[dict[str, object]]:
    """Measure simulated patients, real ones if there are any, and nonsense."""
    labels = np.tile(range(4), len(found))
    rows = [measured(abstention, network, found.reshape(-1, found.shape[-1]), labels, "simulated")]
    if folder is not None:
        rows.append(real(abstention, network, backbone, folder))
    for name, images in nonsense(np.random.default_rng(0)).items():
        # Four volumes after each other are the sequences of one patient.
        found = np.concatenate([mean_features(backbone, four) for four in np.split(images, len(images) // 4)])
        rows.append(measured(abstention, network, found, None, name))
    return rows


def declared() -> tuple[str, str]:
    """Return cohort and seeds, as the tables name them."""
    return COHORT, f"{SEED} of the simulation, 0 of the inputs without a brain"


def mean_features(backbone: Backbone, images: np.ndarray) -> np.ndarray:
    """Return mean features of volumes, (volume, component), for their slices, (volume, slice, row, column)."""
    return backbone.features(whiten(to_kspace(images.astype(np.float32))))[..., 0, :].mean(axis=1)


def measured(
    abstention: Abstention, network: torch.nn.Module, features: np.ndarray, labels: np.ndarray | None, name: str
) -> dict[str, object]:
    """Return how many volumes are answered, and how many answers are correct, with and without abstention."""
    values = torch.from_numpy(np.ascontiguousarray(features))
    with torch.no_grad():
        found = abstention.probabilities(network(values[:, None, None]))
    verdicts, told = np.array(abstention.verdicts(values, found)), found.argmax(dim=1).numpy()
    right = None if labels is None else told == labels
    return {
        "input": name,
        "volumes": len(values),
        "answered": int((verdicts == "").sum()),
        "unsure": int((verdicts == UNSURE).sum()),
        "unlike": int((verdicts == UNLIKE).sum()),
        "right_of_answered": None if right is None else int(right[verdicts == ""].sum()),
        "right_of_all": None if right is None else int(right.sum()),
    }


def real(abstention: Abstention, network: torch.nn.Module, backbone: Backbone, folder: Path) -> dict[str, object]:
    """Measure real patients, four volumes each."""
    task = read_task(folder)
    files = [*task.training, *task.test]
    stacks = [read_centre_slices(folder / file, task.sequences, SLICES, SIZE) for file in files]
    features = np.concatenate([mean_features(backbone, stack) for stack in stacks])
    return measured(abstention, network, features, np.tile(range(4), len(files)), "real patients")


def nonsense(random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return inputs that are no brains, 52 volumes of each kind."""
    shape = (52, SLICES, SIZE, SIZE)
    row, column = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
    radii, speckle = random.uniform(5, 14, size=(52, 1, 1, 1)), 0.05 * random.random(shape)
    side = np.maximum(abs(row), abs(column))
    return {
        "noise, Gaussian": np.abs(random.normal(size=shape)),
        "noise, uniform": random.random(shape),
        "ramp with noise": (row + column + SIZE) / SIZE + 0.5 * speckle * 10,
        "disc": (row**2 + column**2 < radii**2) + speckle,
        "square": (side < radii) + speckle,
        "checkerboard": (row + column) % 2 + speckle,
        "stripes": np.sin(column * random.uniform(0.2, 1.5, size=(52, 1, 1, 1))) + 1 + speckle,
    }


def write(table: pd.DataFrame, abstentions: dict[str, Abstention]) -> None:
    """Write the table as CSV and Markdown."""
    made = origin(*declared())
    title = "Volumes that public heads answer, and how many of these answers are right"
    chosen = [
        f"{name}: probability {a.least:.3f} at temperature {a.temperature:.3f}, distance {a.public.farthest:.3f}"
        for name, a in abstentions.items()
    ]
    note = (
        f"Thresholds from 150 other simulated patients ({'; '.join(chosen)}). Answers of less probability are unsure: "
        f"it is the least at which {RIGHT:.0%} of the answers were right. Volumes farther from every class are unlike."
    )
    cells = tuple(
        tuple("–" if pd.isna(v) else f"{v:g}" if i > 1 else v for i, v in enumerate(r)) for r in table.to_numpy()
    )
    heading = tuple(str(name).replace("_", " ") for name in table.columns)
    write_text(RESULTS / "table.md", to_markdown(Sheet(title, heading, cells, (note, *made), names=2)))
    write_text(RESULTS / "table.csv", to_csv(table.convert_dtypes(), (*made, note)))


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    z = 1.96
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return middle - half, middle + half


def reliability(abstention: Abstention, network: torch.nn.Module, held: np.ndarray) -> Figure:
    """Draw the share of right answers against the probability, and against the share that is answered."""
    values = torch.from_numpy(held.reshape(-1, held.shape[-1]))
    with torch.no_grad():
        sure, told = abstention.probabilities(network(values[:, None, None])).max(dim=1)
    right = (told.numpy() == np.tile(range(4), len(held))).astype(float)
    order = np.argsort(-sure.numpy())
    with figure_style():
        figure, panels = panel_grid(2, 2, 3.6)
        bins = np.array_split(order[::-1], 10)
        points = [(float(sure.numpy()[b].mean()), right[b].mean(), len(b)) for b in bins]
        bars = np.transpose([abs(np.array(wilson(share, count)) - share) for _, share, count in points])
        look = line_look(0) | {"linestyle": "none"}
        panels[0].errorbar([p[0] for p in points], [p[1] for p in points], bars, label="tenths of the volumes", **look)
        panels[0].plot([0.25, 1], [0.25, 1], color="#777777", linestyle=":", label="perfect reliability")
        panels[0].axvline(abstention.least, color="#0072B2", linestyle="--", label="threshold: unsure below")
        panels[0].set(xlabel="probability of the answer", ylabel="share of right answers", xlim=(0.25, 1.02))
        shares = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
        answered = np.arange(1, len(order) + 1) / len(order)
        panels[1].plot(answered, shares, color="#000000", label="right among the surest volumes")
        kept = float((sure.numpy() >= abstention.least).mean())
        panels[1].axvline(kept, color="#0072B2", linestyle="--")
        panels[1].set(xlabel="share of volumes that are answered", ylabel="share of right answers", ylim=(0.8, 1.005))
        set_legend(
            figure,
            panels,
            "150 simulated patients to whom nothing was fitted; bars: 95 % intervals of Wilson, per volume",
        )
        set_title(figure, "Reliability of the public head on volumes of the public simulation")
    return figure


if __name__ == "__main__":
    main()
