"""Machine-dependent settings, which change results by rounding at most."""
