"""Complex-valued deep learning with differential privacy (Ziller et al.)."""
