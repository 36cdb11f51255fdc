"""Tables, figures and cards: results of finished runs for readers."""

import os
import sys

# Figures are files. Jupyter exports the name of its own backend to the programs that it starts, and matplotlib cannot
# be imported where that backend is missing. A notebook that uses this package itself keeps its backend.
if not {"matplotlib", "ipykernel"} & sys.modules.keys():
    os.environ["MPLBACKEND"] = "agg"
