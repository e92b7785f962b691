"""`lightning-hier plan`: predicts the cost of each strategy, and recommends one."""

from lightning_hier.cli.plan.command import run

__all__ = ["run"]
