from __future__ import annotations

import torch
from hypothesis import settings

# Time says nothing about correctness on a machine that does other work too.
settings.register_profile("zetadp", deadline=None)
settings.load_profile("zetadp")
# The networks here are far too small to share among threads.
torch.set_num_threads(1)
