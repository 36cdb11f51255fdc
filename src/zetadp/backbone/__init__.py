"""The public backbone, trained on simulated patients, from which runs start."""
