"""What leaves a data holder: the units drawn, their contributions, clipping, noise and the release."""
