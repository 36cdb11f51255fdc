"""The pretrained head on private cohorts from distributions held apart, from the runs of held_apart_*.yaml.

    make held-apart

runs the four scenarios and this, which writes held_apart.csv and held_apart.md: for each cohort what the public head
tells before any private training, and the head after it, at every epsilon.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from phantom_full import ROOT, configuration, public_head, with_spread

from zetadp.nn.backbone import Backbone, load_backbone
from zetadp.rendering import MISSING, Sheet, to_markdown
from zetadp.storage import write_text

COHORTS = {
    "vendor": "another vendor's scanners",
    "healthy": "healthy brains",
    "heavy": "heavy lesions",
    "procedural": "brains from implicit shapes, no atlas",
}
EPSILONS = ("1", "8", "inf")


def collect(backbone: Backbone) -> pd.DataFrame:
    """Return one row a cohort and epsilon; epsilon 0 is the public head alone."""
    rows = []
    for cohort, label in COHORTS.items():
        config = configuration(f"held_apart_{cohort}")
        table = pd.read_csv(Path("results") / config["name"] / "tables/table1.csv", dtype={"epsilon": str}, comment="#")
        own = table[(table["network"] == "pretrained") & (table["arm"] == "federated")]
        start = public_head(config, backbone)
        rows.append({"cohort": label, "epsilon": "0", "seeds": 1, "mean": start["mean"], "std": float("nan")})
        rows += [{"cohort": label} | dict(row[["epsilon", "seeds", "mean", "std"]]) for _, row in own.iterrows()]
    return pd.DataFrame(rows)


def sheet(found: pd.DataFrame) -> Sheet:
    """Lay the table out with one line a cohort."""

    def cell(cohort: str, epsilon: str) -> str:
        row = found[(found["cohort"] == cohort) & (found["epsilon"] == epsilon)]
        if row.empty:
            return MISSING
        return with_spread(row["mean"].iloc[0], row["std"].iloc[0])

    rows = tuple((label, *(cell(label, epsilon) for epsilon in ("0", *EPSILONS))) for label in COHORTS.values())
    notes = (
        "Accuracy in % over the images of held-out patients, mean and standard deviation over seeds. Backbone, public "
        "head and settings are those of the default: nothing was chosen on these cohorts.",
    )
    headings = ("private cohort", "public head alone", "ε = 1", "ε = 8", "ε = ∞")
    return Sheet("Cohorts held apart", headings, rows, notes)


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    given = parser.parse_args()
    found = collect(load_backbone(ROOT / "src/zetadp/data/backbone.safetensors"))
    write_text(given.output / "held_apart.csv", found.to_csv(index=False, float_format="%.6g"))
    write_text(given.output / "held_apart.md", to_markdown(sheet(found)))
    print(to_markdown(sheet(found)))


if __name__ == "__main__":
    main()
