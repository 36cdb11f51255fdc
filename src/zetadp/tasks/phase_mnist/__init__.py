"""PhaseMNIST: digits as the real and the imaginary part of one image, and public features of them."""

from zetadp.tasks.phase_mnist.task import PhaseMnist as PhaseMnist
from zetadp.tasks.phase_mnist.task import task as task
