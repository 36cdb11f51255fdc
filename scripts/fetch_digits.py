"""Fetch the official files of MNIST."""

from pathlib import Path
from typing import TYPE_CHECKING

from zetadp.base.workflow import run
from zetadp.tasks.phase_mnist.digits import fetch_digits

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(*, files: list[Path]) -> None:
    """Download the files that are missing, and check each against its published checksum."""
    fetch_digits(files[0].parent)


if __name__ == "__main__":
    run(main, snakemake)
