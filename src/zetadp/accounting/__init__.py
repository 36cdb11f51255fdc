"""Laws of noise and what they cost: the epsilon of releases, and the noise for an epsilon."""
