"""Complex-valued federated learning with differential privacy and MRI applications (Riess et al.)."""
