"""Sampling, clipping, noise, ledger and accounting."""
