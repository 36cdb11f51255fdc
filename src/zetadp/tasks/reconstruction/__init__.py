"""Reconstruction of accelerated single-coil MRI: volumes, masks, public networks, metrics."""

from zetadp.tasks.reconstruction.task import Reconstruction as Reconstruction
from zetadp.tasks.reconstruction.task import task as task
