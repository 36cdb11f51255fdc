"""The von Mises-Fisher mechanism, which perturbs the direction of a gradient: privacy and Bayes' capacity."""
