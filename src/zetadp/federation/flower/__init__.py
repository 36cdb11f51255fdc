"""The same rounds between separate machines: Flower carries the messages, and nothing else is left to it."""
