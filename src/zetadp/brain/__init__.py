"""Brain MRI: which pulse sequence an image is of, told from its k-space."""

from zetadp.brain.task import BrainSequences as BrainSequences
from zetadp.brain.task import task as task
