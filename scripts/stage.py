"""Run the function of the library that a rule names as its stage."""

from typing import TYPE_CHECKING

from zetadp.base.workflow import find_stage, run

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

if __name__ == "__main__":
    run(find_stage(snakemake.params.stage), snakemake)
