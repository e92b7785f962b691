"""LSTM acoustic model for hybrid speech recognition, and its base class."""

from __future__ import annotations

from examples.acoustic.models.base import FrameClassifier
from examples.acoustic.models.lstm import LSTMAcousticModel

__all__ = ["FrameClassifier", "LSTMAcousticModel"]
