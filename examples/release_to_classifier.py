"""Release features of patients as noisy rows, and train a classifier on the rows alone."""

import tempfile
from pathlib import Path

import h5py
import numpy as np
import torch

import zetadp

PEOPLE, CLASSES, COMPONENTS = 5000, 2, 8
random = np.random.default_rng(0)
centres = random.normal(size=(CLASSES, COMPONENTS))
labels = random.integers(CLASSES, size=PEOPLE)
features = centres[labels] + random.normal(size=(PEOPLE, COMPONENTS))  # from a network that saw none of these people

folder = Path(tempfile.mkdtemp(prefix="zetadp-"))
records = zetadp.Records(features, labels, patients=range(PEOPLE))
print(zetadp.release(records, zetadp.Mixing(PEOPLE, CLASSES), epsilon=8, delta=1e-5, file=folder / "rows.h5"))

# From here on only the file is needed. Anybody may train on it, as often as they like.
with h5py.File(folder / "rows.h5") as file:
    rows, shares = (torch.from_numpy(file[name][:]) for name in ("features", "labels"))
    norm = float(file.attrs["norm"])
head = torch.nn.Linear(COMPONENTS, CLASSES)
optimiser = torch.optim.Adam(head.parameters(), lr=0.05)
for _ in range(200):
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(head(rows), shares.clamp(min=0)).backward()
    optimiser.step()

tested = random.integers(CLASSES, size=1000)
others = torch.from_numpy(centres[tested] + random.normal(size=(1000, COMPONENTS))).float()
clipped = others * (norm / others.norm(dim=1, keepdim=True)).clamp(max=1)  # like the features behind the rows
scores = head(clipped)
print(f"accuracy on 1000 other people: {(scores.argmax(1).numpy() == tested).mean():.0%}, file: {folder / 'rows.h5'}")
