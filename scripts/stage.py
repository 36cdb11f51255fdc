"""Run the function of the library that a rule names as its stage."""

from typing import TYPE_CHECKING

from zetadp.base.workflow import run, stage_named

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

if __name__ == "__main__":
    run(stage_named(snakemake.params.stage), snakemake)
