"""Noise on the direction of a gradient, and Bayes' capacity (Biswas et al.)."""
