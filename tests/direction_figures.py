"""Figures of the von Mises-Fisher mechanism from an independent calculation, and what its paper prints.

The tables beside `papers/directions` name their columns as the kept table does, with its part before the colon.
"""

from pathlib import Path

import pandas as pd

_FOLDER = Path(__file__).with_name("papers") / "directions"
OF_DIRECTIONS = pd.read_csv(_FOLDER / "independent_directions.csv", index_col="kappa")
OF_NOISE = pd.read_csv(_FOLDER / "independent_gaussian.csv", index_col="sigma")
DIMENSION = 13_700
# Concentration: logarithm of the capacity in nats.
CAPACITY = OF_DIRECTIONS["capacities:direction"].to_dict()
# Order and argument: g, the logarithm of I relative to its first term.
BESSEL = {
    (24, 25): 5.664396977450607,
    (99, 75): 13.22787439455447,
    (6849, 25): 0.02281018100526766,
    (6849, 75): 0.205288895112526,
    (6849, 500): 9.118022671005738,
    (6849, 5000): 860.3516894643483,
    (6849, 50000): 33813.74134885979,
    (49999, 500): 1.249984375833272,
    (499999, 5000): 12.49984375552056,
}
# Rank correlation of the printed reconstruction errors with epsilon and with the capacity for radii of 1, the root of
# 3, 3, 128 and 384.
SPEARMAN = (-0.498, -0.752, -0.924, -0.979, -1.0, -1.0, -1.0)
