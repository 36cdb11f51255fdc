"""Figures of the von Mises-Fisher mechanism from an independent calculation, and what its paper prints.

The tables beside `papers/directions` name their columns as the kept table does, with its part before the colon.
"""

from pathlib import Path

import pandas as pd

_FOLDER = Path(__file__).with_name("papers") / "directions"
OF_DIRECTIONS = pd.read_csv(_FOLDER / "independent_directions.csv", index_col="kappa")
OF_NOISE = pd.read_csv(_FOLDER / "independent_gaussian.csv", index_col="sigma")
DIMENSION = 13_700
# Rank correlation of the printed reconstruction errors with epsilon and with the capacity for radii of 1, the root of
# 3, 3, 128 and 384.
SPEARMAN = (-0.498, -0.752, -0.924, -0.979, -1.0, -1.0, -1.0)
