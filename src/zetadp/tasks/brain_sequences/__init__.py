"""Brain MRI: which pulse sequence an image is of, told from its k-space."""

from zetadp.tasks.brain_sequences.task import BrainSequences as BrainSequences
from zetadp.tasks.brain_sequences.task import task as task
