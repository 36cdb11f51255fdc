"""The public backbone: trained on simulated patients, and what trainings start from."""
