"""The warm Python of tests: Snakemake and Flower start from it too."""

from __future__ import annotations

from functools import cache

from zetadp.base.warm import start_python

LOADED = (
    *("dp_accounting", "h5py", "nibabel", "pandas", "safetensors.torch", "scipy.optimize", "scipy.stats", "yaml"),
    *("matplotlib.backends.backend_svg", "matplotlib.figure", "torch._dynamo", "torch.func", "torch.nn.functional"),
    *("fastapi", "httpx", "snakemake.cli", "sqlalchemy.orm", "uvicorn"),
)
"""What jobs, Snakemake and Flower take longest to import."""


@cache
def python(loaded: tuple[str, ...] = LOADED, path: str = "") -> str:
    """Return the path of the program (`start_python`), which a test process starts once."""
    return start_python(loaded, path, wait=True)
