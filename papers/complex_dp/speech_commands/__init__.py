"""Spoken commands: classify the word in a clip of one second, from its complex spectrogram or from public features."""
