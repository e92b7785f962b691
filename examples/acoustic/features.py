"""Features of waveforms: resampling, log filter-bank energies and deltas."""

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
# Kaldi's features are of integer samples. With this scale, the energies of quiet sounds are above
# the floor of the logarithm.
_INT16_SCALE = 32_768.0


def resample(waveform: Tensor, rate_hz: int, target_hz: int = SAMPLE_RATE_HZ) -> Tensor:
    """Resample a waveform (samples,) from ``rate_hz`` to ``target_hz``, if they differ."""
    if rate_hz == target_hz:
        return waveform
    return torchaudio.functional.resample(waveform, rate_hz, target_hz)


def log_filter_bank(
    waveform: Tensor, rate_hz: int = SAMPLE_RATE_HZ, filters: int = FILTERS
) -> Tensor:
    """Compute log mel filter-bank energies of 25 ms every 10 ms (two_tiered_bmuf_gtc, 3.2).

    The definition is Kaldi's, without dither. The centre of frame k is at (k + 1/2) * 10 ms, so a
    waveform of n frame shifts has n frames.

    Args:
        waveform: (samples,) samples between -1 and 1.
        rate_hz: sample rate of the waveform.
        filters: number of filters.

    Returns:
        (frames, filters) float32, log energies.

    Raises:
        ValueError: the waveform is shorter than one window, or not one-dimensional.
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
    """Return the time in seconds of the centre of each frame of :func:`log_filter_bank`."""
    return (np.arange(frames) + 0.5) * FRAME_SHIFT_S


def with_deltas(features: Tensor, orders: int = 2) -> Tensor:
    """Append deltas up to order ``orders`` to features (T, D): (T, D * (orders + 1))."""
    if orders < 0:
        raise ValueError(f"orders of deltas must be at least 0, got {orders}")
    by_order = [features]
    for _ in range(orders):
        by_order.append(torchaudio.functional.compute_deltas(by_order[-1].T[None])[0].T)
    return torch.cat(by_order, dim=1)
