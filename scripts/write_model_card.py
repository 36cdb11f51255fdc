"""Write the card that goes with a trained model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from zetadp.modelcard import model_card
from zetadp.storage import read_json, write_text
from zetadp.workflow import run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, metrics: Path, privacy: Path, card: Path, settings: dict[str, Any], cohort_label: str) -> None:
    """Say what the model does, what it was trained on, what it guarantees and how good it is."""
    measured = read_json(metrics)
    write_text(card, model_card(measured["run"], settings, read_json(privacy), measured, cohort_label))


if __name__ == "__main__":
    run(main, snakemake)
