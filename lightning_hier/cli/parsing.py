"""The parser of a command that does not train."""

from __future__ import annotations

import argparse
from typing import NoReturn

from lightning_hier.cli.commands import PROGRAM
from lightning_hier.cli.mistakes import end_with


class CommandParser(argparse.ArgumentParser):
    """Reports errors in one line, like the commands that train."""

    def __init__(self, command: str, description: str, epilog: str | None = None) -> None:
        """Create the parser of ``command``. The help shows both texts without reformatting."""
        super().__init__(
            prog=f"{PROGRAM} {command}",
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        end_with(f"{message}; '{self.prog} --help' lists the arguments")
