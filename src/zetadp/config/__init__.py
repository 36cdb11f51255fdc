"""The configuration: checked, and turned into runs and plans."""
