"""From sound to frames: resampling, log filter-bank energies, deltas of cepstra."""

from __future__ import annotations

import numpy as np
import torch
import torchaudio
from torch import Tensor
from torchaudio.compliance import kaldi

SAMPLE_RATE_HZ = 16_000
FRAME_SHIFT_S = 0.010
WINDOW_S = 0.025
FILTERS = 64
# Kaldi reads 16-bit samples as integers; the same scale keeps quiet sounds above the floor that
# protects the logarithm.
_INT16_SCALE = 32_768.0


def resample(waveform: Tensor, rate_hz: int, target_hz: int = SAMPLE_RATE_HZ) -> Tensor:
    """Bring (samples,) recorded at ``rate_hz`` to ``target_hz``; the same tensor if they agree."""
    if rate_hz == target_hz:
        return waveform
    return torchaudio.functional.resample(waveform, rate_hz, target_hz)


def log_filter_bank(
    waveform: Tensor, rate_hz: int = SAMPLE_RATE_HZ, filters: int = FILTERS
) -> Tensor:
    """Log mel filter-bank energies, 25 ms windows every 10 ms (two_tiered_bmuf_gtc 3.2).

    Kaldi's definition without dither. Frame k is centred at (k + 1/2) * 10 ms, so that a sound of n
    frame shifts has n frames.

    Args:
        waveform: (samples,) between -1 and 1.
        rate_hz: its sample rate.
        filters: energies per frame.

    Returns:
        (frames, filters) float32.

    Raises:
        ValueError: if the sound is shorter than one window, or not one-dimensional.
    """
    if waveform.ndim != 1:
        raise ValueError(f"a waveform must have shape (samples,), got {tuple(waveform.shape)}")
    shortest = int(WINDOW_S * rate_hz)
    if len(waveform) < shortest:
        raise ValueError(
            f"a sound must have at least {shortest} samples ({1000 * WINDOW_S:g} ms at {rate_hz} "
            f"Hz), got {len(waveform)}; leave it out or pad it with silence"
        )
    return kaldi.fbank(
        waveform[None].to(torch.float32) * _INT16_SCALE,
        num_mel_bins=filters,
        frame_length=1000 * WINDOW_S,
        frame_shift=1000 * FRAME_SHIFT_S,
        sample_frequency=float(rate_hz),
        snip_edges=False,
    )


def frame_times(frames: int) -> np.ndarray:
    """Seconds at the centres of ``frames`` frames of :func:`log_filter_bank`."""
    return (np.arange(frames) + 0.5) * FRAME_SHIFT_S


def with_deltas(features: Tensor, orders: int = 2) -> Tensor:
    """Append the slopes over time, and the slopes of these, to (T, D): (T, D * (orders + 1))."""
    if orders < 0:
        raise ValueError(f"orders of deltas must be at least 0, got {orders}")
    parts = [features]
    for _ in range(orders):
        parts.append(torchaudio.functional.compute_deltas(parts[-1].T[None])[0].T)
    return torch.cat(parts, dim=1)
