"""PhaseMNIST: images whose real and imaginary parts are two digits, and public features of these images."""
