"""Transform the slices of one shard to k-space."""

from dataclasses import replace
from pathlib import Path

from zetadp.base.storage import read_stack, write_stack
from zetadp.base.workflow import run
from zetadp.mri.kspace import to_kspace


def main(*, slices: Path, kspace: Path) -> None:
    """Write the centred unitary Fourier transform of every slice, with all coefficients."""
    stack = read_stack(slices)
    axes = (*stack.axes[:3], "ky", "kx")
    provenance = stack.provenance | {"fourier": "centred, orthonormal"}
    write_stack(kspace, replace(stack, values=to_kspace(stack.values), axes=axes, provenance=provenance))


if __name__ == "__main__":
    run(main)
