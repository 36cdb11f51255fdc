"""Left bundle branch block in electrocardiograms: recordings, spectra of one lead, features of the usual beat."""

from zetadp.tasks.ecg.task import Ecg as Ecg
from zetadp.tasks.ecg.task import task as task
