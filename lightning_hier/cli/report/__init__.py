"""One HTML page that sets runs side by side, from what their loggers have written."""

from lightning_hier.cli.report.command import run

__all__ = ["run"]
