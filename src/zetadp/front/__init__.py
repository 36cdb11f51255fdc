"""The front door: records of people, one call that trains on them privately, and what may be said afterwards."""
