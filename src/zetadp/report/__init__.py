"""Tables, figures and cards: what a reader sees of finished runs."""
