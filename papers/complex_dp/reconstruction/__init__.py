"""Reconstruction of accelerated single-coil MRI: volumes, masks, public networks, metrics."""
