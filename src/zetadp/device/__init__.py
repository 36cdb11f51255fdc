"""What depends on the machine, and never changes a result by more than rounding."""
