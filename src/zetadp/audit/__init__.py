"""Attacks on the shipped code that would refute its privacy statements if they were false."""
