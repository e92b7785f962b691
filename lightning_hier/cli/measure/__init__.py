"""`lightning-hier measure`: measures the links of a cluster and a step of a module."""

from lightning_hier.cli.measure.command import run

__all__ = ["run"]
