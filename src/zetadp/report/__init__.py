"""Tables, figures and cards: results of finished runs for readers."""
