"""Planner: predicts the cost of each strategy on a cluster, and recommends one.

The equations are in docs/planning.md. All dataclasses check their values and raise ``ValueError``.
"""

from lightning_hier.planning.inputs import Link, Network, Processor, Workload, size_of
from lightning_hier.planning.prediction import Prediction, Settings
from lightning_hier.planning.recommend import Recommendation, recommend
from lightning_hier.planning.strategies import predict, predict_all

__all__ = [
    "Link",
    "Network",
    "Prediction",
    "Processor",
    "Recommendation",
    "Settings",
    "Workload",
    "predict",
    "predict_all",
    "recommend",
    "size_of",
]
