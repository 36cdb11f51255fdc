"""Whiten the k-space of one shard, each image by its own covariance."""

from dataclasses import replace
from pathlib import Path

from zetadp.base.storage import read_stack, write_stack
from zetadp.base.workflow import run
from zetadp.mri.kspace import whiten


def main(*, kspace: Path, whitened: Path) -> None:
    """Write k-space whose real and imaginary part are uncorrelated with unit variance in every image."""
    stack = read_stack(kspace)
    provenance = stack.provenance | {"whitening": "per image, 2x2 covariance of real and imaginary part"}
    values = whiten(stack.values)
    write_stack(whitened, replace(stack, values=values, units="standard deviations", provenance=provenance))


if __name__ == "__main__":
    run(main)
