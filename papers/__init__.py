"""What the papers behind the method print, beside what is true: experiments, rivals and kept tables."""
