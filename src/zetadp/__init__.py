"""Federated learning of complex-valued networks on MRI k-space with per-patient differential privacy."""
