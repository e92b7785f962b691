"""Frame classifiers for hybrid speech recognition: LSTM, bidirectional LSTM and plain DNN."""

from __future__ import annotations

from examples.acoustic.models.base import FrameClassifier
from examples.acoustic.models.blstm import BLSTMAcousticModel
from examples.acoustic.models.dnn import DNNAcousticModel
from examples.acoustic.models.lstm import LSTMAcousticModel

__all__ = ["BLSTMAcousticModel", "DNNAcousticModel", "FrameClassifier", "LSTMAcousticModel"]
