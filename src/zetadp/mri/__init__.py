"""Brain MRI: volumes in the layout of the Decathlon, slices, k-space and whitening."""
