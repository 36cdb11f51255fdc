"""What everything else stands on: files, tensors, random streams, checks, devices."""
