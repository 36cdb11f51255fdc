"""Complex-valued network parts and the networks built from them."""
