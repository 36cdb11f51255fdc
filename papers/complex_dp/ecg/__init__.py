"""Left bundle branch block in electrocardiograms: recordings, spectra of one lead, features of the usual beat."""
