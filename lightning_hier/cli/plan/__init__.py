"""`lightning-hier plan`: what each strategy would cost, and which one to take."""

from lightning_hier.cli.plan.command import run

__all__ = ["run"]
