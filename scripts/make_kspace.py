"""Transform the slices of one shard to k-space."""

from dataclasses import replace
from pathlib import Path

from zetadp.base.storage import Items
from zetadp.base.workflow import run
from zetadp.mri.decathlon import AXES
from zetadp.mri.kspace import to_kspace


def main(*, slices: Path, kspace: Path) -> None:
    """Write the centred unitary Fourier transform of every slice, with all coefficients."""
    found = Items.read(slices, ("values",))
    provenance = {**found.provenance, "fourier": "centred, orthonormal"}
    made = replace(found, arrays={"values": to_kspace(found.arrays["values"])}, provenance=provenance)
    made.write(kspace, (*AXES[:3], "ky", "kx"), "scanner intensity, arbitrary")


if __name__ == "__main__":
    run(main)
