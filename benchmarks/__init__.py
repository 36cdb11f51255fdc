"""What a private step costs, and the searches and measurements behind the default's settings."""
