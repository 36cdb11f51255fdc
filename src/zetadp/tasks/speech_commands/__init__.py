"""Spoken commands: classify the word in a clip of one second, from its complex spectrogram or from public features."""

from zetadp.tasks.speech_commands.task import SpeechCommands as SpeechCommands
from zetadp.tasks.speech_commands.task import task as task
