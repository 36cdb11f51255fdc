"""Released rows of mixed features (Li, Cao and Yao)."""
