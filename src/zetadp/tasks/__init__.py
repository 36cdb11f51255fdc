"""The tasks of this package, each by the name that a plan gives it; other packages may bring more."""
