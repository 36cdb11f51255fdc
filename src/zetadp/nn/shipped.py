"""Where the backbone lies that comes with the package; free of PyTorch, for the workflow to import."""

SHIPPED = "data/backbone.safetensors"
"""The file, relative to the package."""
