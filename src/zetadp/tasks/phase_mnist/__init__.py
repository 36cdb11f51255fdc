"""PhaseMNIST: images whose real and imaginary parts are two digits, and public features of these images."""

from zetadp.tasks.phase_mnist.task import PhaseMnist as PhaseMnist
from zetadp.tasks.phase_mnist.task import task as task
