"""Features: log filter-bank energies, deltas, normalisation, and stacking to a low frame rate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torchaudio
from torch import Tensor
from torchaudio.compliance import kaldi

SAMPLE_RATE_HZ = 16_000
STACK = 3
"""Frames of a recording (10 ms) in a frame of the model."""

_FRAME_SHIFT_S = 0.010
_WINDOW_S = 0.025
_FILTERS = 64
# Kaldi's features are of integer samples. With this scale, the energies of quiet sounds are above
# the floor of the logarithm.
_INT16_SCALE = 32_768.0
# Limits the scale of features that are almost constant, such as filters above the band of the
# recording.
_SMALLEST_DEVIATION = 1e-3


def log_filter_bank(waveform: Tensor, rate_hz: int) -> Tensor:
    """Compute log mel filter-bank energies of 25 ms every 10 ms (two_tiered_bmuf_gtc, 3.2).

    The definition is Kaldi's, without dither. The centre of frame k is at (k + 1/2) * 10 ms.

    Args:
        waveform: (samples,) samples between -1 and 1, which are resampled to 16 kHz.
        rate_hz: sample rate of the waveform.

    Returns:
        (frames, 64) float32, log energies.
    """
    resampled = torchaudio.functional.resample(waveform, rate_hz, SAMPLE_RATE_HZ)
    return kaldi.fbank(
        resampled[None] * _INT16_SCALE,
        num_mel_bins=_FILTERS,
        frame_length=1000 * _WINDOW_S,
        frame_shift=1000 * _FRAME_SHIFT_S,
        sample_frequency=float(SAMPLE_RATE_HZ),
        snip_edges=False,
    )


def frame_times(frames: int) -> np.ndarray:
    """Return the time in seconds of the centre of each frame of :func:`log_filter_bank`."""
    return (np.arange(frames) + 0.5) * _FRAME_SHIFT_S


def with_deltas(features: Tensor, orders: int) -> Tensor:
    """Append deltas up to order ``orders`` to features (T, D): (T, D * (orders + 1))."""
    by_order = [features]
    for _ in range(orders):
        by_order.append(torchaudio.functional.compute_deltas(by_order[-1].T[None])[0].T)
    return torch.cat(by_order, dim=1)


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation (D,) of each feature over frames."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def fit(cls, features: Iterable[Tensor]) -> Normalisation:
        """Estimate mean and deviation over all frames of several (T, D) tensors, in float64."""
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for frames in features:
            frames = frames.double()
            count += frames.shape[0]
            total = total + frames.sum(0)
            squares = squares + frames.square().sum(0)
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
        return cls(mean.float(), deviation.clamp_min(_SMALLEST_DEVIATION).float())

    def apply(self, features: Tensor) -> Tensor:
        """Return features (T, D), shifted and scaled to mean 0 and deviation 1."""
        return (features - self.mean) / self.deviation


def stacked(features: Tensor) -> Tensor:
    """Concatenate frames 0 to 2, 3 to 5 and so on of (T, D): (T', 3 D).

    Frames at the end that have no centre of a stack are left out. The last stack may repeat the
    last frame.
    """
    frames = features.shape[0]
    positions = _centres(frames)[:, None] + torch.arange(STACK) - STACK // 2
    return features[positions.clamp(0, frames - 1)].flatten(1)


def stacked_targets(targets: Tensor) -> Tensor:
    """Return the targets (T',) of the centres of :func:`stacked`, from targets (T,)."""
    return targets[_centres(targets.shape[0])]


def _centres(frames: int) -> Tensor:
    first = STACK // 2
    return torch.arange(first, max(frames, first), STACK)
