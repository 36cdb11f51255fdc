"""From volumes to whitened k-space."""
