"""Simulated words: a source of pulses and noise, filtered by moving formants. They use no recordings.

Formant frequencies are rounded averages of American English vowels from textbooks (Peterson and Barney 1952,
Hillenbrand et al. 1995). Durations, loci of consonants and all variation are guesses.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from papers.complex_dp.speech_commands.clips import LENGTH, RATE, WORDS
from zetadp.base.randomness import Purpose, stream

FOURIER, STEP = 512, 128
FRAMES = LENGTH // STEP + 1
UPPER = ((3500.0, 220.0), (4500.0, 300.0))
"""Frequency and bandwidth of the fourth and the fifth formant, which do not move."""

RELEASED = 0.7
"""Share of final stop consonants with an audible burst."""


@lru_cache
def scripts() -> dict[str, np.ndarray]:
    """Return the segments of each word (``phones.csv``), shape (segment, 12).

    The columns are the length in milliseconds; three formants at the start and three at the end, in Hz; amplitudes of
    pulses, of noise that passes the formants, and of noise at a place of its own; centre and width of that place in Hz.
    """
    table = pd.read_csv(Path(__file__).with_name("phones.csv"), index_col="word")
    return {str(word): rows.to_numpy(dtype=float) for word, rows in table.groupby("word")}


def simulated_words(
    count: int,
    seed: int,
    *place: int,
    formants: float = 0.08,
    durations: float = 0.3,
    noise: tuple[float, float] = (5.0, 40.0),
) -> tuple[np.ndarray, np.ndarray]:
    """Simulate clips. All words are equally frequent, and every clip has a new speaker.

    Parameters
    ----------
    count
        Number of clips.
    seed
        Seed of all draws.
    *place
        Non-negative integers that separate different uses of one seed.
    formants, durations
        Standard deviations of the logarithms of each segment's formants, around those of the speaker, and of its
        duration.
    noise
        Lowest and highest signal-to-noise ratio in dB.

    Returns
    -------
    waves, labels
        int16 samples at 16 kHz, shape (clip, sample), and positions in `WORDS`, shape (clip,).
    """
    random = stream(seed, Purpose.PRETRAINING, *place)
    labels = random.permutation(np.arange(count) % len(WORDS))
    tracks = np.stack([_tracks(WORDS[label], formants, durations, random) for label in labels.tolist()])
    speech = _sounded(tracks, random)
    return _recorded(speech, noise, random), labels


def _tracks(word: str, formants: float, durations: float, random: np.random.Generator) -> np.ndarray:
    """Return formants, amplitudes and the place of noise at each frame of a clip, and the pitch, shape (9, frame)."""
    size = random.uniform(0.92, 1.38)
    segments = scripts()[word]
    if segments[-1, 10] in (900, 5000) and random.random() > RELEASED:
        segments = segments[:-1]
    rate = np.exp(random.normal(0, 0.22)) * 1.15
    lengths = segments[:, 0] * rate
    lengths *= np.exp(random.normal(0, durations, len(segments)))
    lengths *= min(1, 920 / lengths.sum())
    ends = lengths.cumsum()
    begin = np.clip(random.normal(500, 110) - ends[-1] / 2, 10, 990 - ends[-1])
    times, values = [0.0], [np.zeros(8)]
    accent = np.exp(random.normal(0, 0.05, 3))
    for number, segment in enumerate(segments):
        first, last, amplitudes, noise_band = np.split(segment[1:], (3, 6, 9))
        tones_scale = accent * np.exp(random.normal(0, formants, 3)) * size
        loud = amplitudes * np.exp(random.normal(0, 0.3, 3))
        noise = noise_band * np.exp(random.normal(0, 0.12, 2))
        start, length = ends[number] - lengths[number], lengths[number]
        # Amplitudes change within 12 ms, formants glide between neighbouring segments.
        edge = min(12.0, 0.3 * length)
        for at, tones in ((start + edge, first), (start + length - edge, last)):
            times.append(begin + at)
            values.append(np.concatenate((tones * tones_scale, loud, noise)))
    values[0] = values[1] * np.array([1, 1, 1, 0, 0, 0, 1, 1])
    times += [times[1] - 15, times[-1] + 25]
    values += [values[0], values[-1] * np.array([1, 1, 1, 0, 0, 0, 1, 1])]
    order = np.argsort(times, kind="stable")
    frames = np.arange(FRAMES) * 1000 * STEP / RATE
    tracks = np.stack([np.interp(frames, np.array(times)[order], track[order]) for track in np.array(values).T])
    glide = np.hanning(9)[None] / np.hanning(9).sum()
    padded = np.pad(tracks[:3], ((0, 0), (4, 4)), mode="edge")
    tracks[:3] = np.stack([np.convolve(track, glide[0], mode="valid") for track in padded])
    pitch = 105 * (size / 0.95) ** 2.2 * np.exp(random.normal(0, 0.18))
    along = np.linspace(0, 1, FRAMES)
    contour = 1 + random.normal(-0.15, 0.2) * (along - 0.5) + 0.03 * np.sin(2 * np.pi * (3 * along + random.random()))
    return np.concatenate((tracks, (pitch * contour.clip(0.5))[None]))


def _sounded(tracks: np.ndarray, random: np.random.Generator) -> Tensor:
    """Return the sound of tracks, shape (clip, sample). The loudest sample of each clip is one."""
    count = len(tracks)
    at = np.linspace(0, FRAMES - 1, LENGTH)
    low = np.floor(at).astype(int).clip(0, FRAMES - 2)
    share = at - low
    pitch = tracks[:, 8, low] * (1 - share) + tracks[:, 8, low + 1] * share
    phase = np.cumsum(pitch * np.exp(random.normal(0, 0.01, pitch.shape)) / RATE, axis=1) + random.random((count, 1))
    pulses = np.diff(np.floor(phase), axis=1, prepend=np.floor(phase[:, :1]))
    voice = _waves(pulses * 40 / np.sqrt(pitch))
    hiss = _waves(random.standard_normal((count, LENGTH)))
    track = torch.from_numpy(tracks).float()[:, :, None, :]
    frequency = torch.linspace(0, RATE / 2, FOURIER // 2 + 1)[:, None]
    resonance = torch.ones(())
    for number, width in enumerate((80.0, 110.0, 160.0)):
        resonance = resonance * _formant(frequency, track[:, number], width)
    size = torch.from_numpy(tracks[:, 2].mean(axis=1) / 2450).float()[:, None, None]
    for centre, width in UPPER:
        resonance = resonance * _formant(frequency, centre * size, width)
    tilt = torch.from_numpy(random.uniform(0.5, 1.3, (count, 1, 1))).float()
    source = (1 + frequency / 300) ** -tilt
    noise_band = torch.exp(-(((frequency - track[:, 6]) / track[:, 7]) ** 2))
    voiced, breath, frication = (track[:, number] for number in (3, 4, 5))
    spectra = voice * (voiced * resonance * source) + hiss * (breath * resonance * 0.5 + frication * noise_band)
    speech = torch.istft(spectra, FOURIER, STEP, 256, _window(), length=LENGTH)
    return speech / speech.abs().amax(dim=1, keepdim=True).clamp_min(1e-6)


def _recorded(speech: Tensor, ratios: tuple[float, float], random: np.random.Generator) -> np.ndarray:
    """Return speech as recorded in a room: with echoes, a microphone's frequency response, noise and a random level."""
    count = len(speech)
    spectra = torch.fft.rfft(speech, 2 * LENGTH)
    frequency = torch.fft.rfftfreq(2 * LENGTH, 1 / RATE)
    decay = torch.from_numpy(random.uniform(0.01, 0.08, (count, 1))).float()
    wet = torch.from_numpy(random.uniform(0, 0.3, (count, 1)) * (random.random((count, 1)) < 0.6)).float()
    time = torch.arange(LENGTH // 4) / RATE
    echo = torch.from_numpy(random.standard_normal((count, LENGTH // 4))).float() * torch.exp(-time / decay)
    echo = wet * echo / echo.norm(dim=1, keepdim=True)
    echo[:, 0] += 1
    octave = (frequency.clamp_min(50) / 1000).log2()
    colour = torch.zeros(count, len(frequency))
    for wave in range(1, 4):
        size, phase = (torch.from_numpy(random.normal(0, s, (count, 1))).float() for s in (2.5 / wave, np.pi))
        colour = colour + size * torch.sin(wave * octave + phase)
    colour = colour + torch.from_numpy(random.normal(0, 1.5, (count, 1))).float() * octave
    reverberant = torch.fft.irfft(spectra * torch.fft.rfft(echo, 2 * LENGTH) * 10 ** (colour / 20))[:, :LENGTH]
    hiss = torch.fft.rfft(torch.from_numpy(random.standard_normal((count, 2 * LENGTH))).float())
    slope = torch.from_numpy(random.uniform(0, 1.2, (count, 1))).float()
    background = torch.fft.irfft(hiss * (frequency.clamp_min(60) / 60) ** -slope)[:, :LENGTH]
    ratio = torch.from_numpy(random.uniform(*ratios, (count, 1))).float()
    power = reverberant.square().mean(dim=1, keepdim=True).sqrt() / background.square().mean(dim=1, keepdim=True).sqrt()
    reverberant = reverberant + background * power * 10 ** (-ratio / 20)
    level = torch.from_numpy(np.exp(random.uniform(np.log(0.03), np.log(0.95), (count, 1)))).float()
    heard = level * reverberant / reverberant.abs().amax(dim=1, keepdim=True)
    return np.asarray((heard * 32767).round().to(torch.int16).numpy())


def _formant(frequency: Tensor, centre: Tensor, width: float) -> Tensor:
    relative = frequency / centre
    return ((1 - relative.square()).square() + (relative * width / centre).square()).rsqrt()


def _waves(sound: np.ndarray) -> Tensor:
    transformed: Tensor = torch.stft(
        torch.from_numpy(sound).float(), FOURIER, STEP, 256, _window(), return_complex=True, pad_mode="constant"
    )
    return transformed


@lru_cache
def _window() -> Tensor:
    return torch.hann_window(256)
