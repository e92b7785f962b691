"""An HTML page that compares runs, based on the files of their loggers."""

from lightning_hier.cli.report.command import run

__all__ = ["run"]
