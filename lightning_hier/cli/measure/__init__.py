"""`lightning-hier measure`: what a cluster's links carry and how long a module's step takes."""

from lightning_hier.cli.measure.command import run

__all__ = ["run"]
