"""Private release of features: rows that mix records, with noise."""
