"""Who holds which patient, and what nodes and server do in a round."""
