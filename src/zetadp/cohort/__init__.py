"""Brain MRI volumes in the layout of the Medical Segmentation Decathlon."""
