"""Whiten the k-space of one shard, each image by its own covariance."""

from dataclasses import replace
from pathlib import Path

from zetadp.base.storage import Items
from zetadp.base.workflow import run
from zetadp.mri.decathlon import AXES
from zetadp.mri.kspace import whiten


def main(*, kspace: Path, whitened: Path) -> None:
    """Write k-space whose real and imaginary part are uncorrelated with unit variance in every image."""
    found = Items.read(kspace, ("values",))
    provenance = {**found.provenance, "whitening": "per image, 2x2 covariance of real and imaginary part"}
    made = replace(found, arrays={"values": whiten(found.arrays["values"])}, provenance=provenance)
    made.write(whitened, (*AXES[:3], "ky", "kx"), "standard deviations")


if __name__ == "__main__":
    run(main)
