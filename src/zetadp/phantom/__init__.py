"""Simulated patients: brains, lesions and scanners."""
