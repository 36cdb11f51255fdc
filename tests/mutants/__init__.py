"""Checks that must pass, and wrong variants of shipped functions that each of them must catch."""
