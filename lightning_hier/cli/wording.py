"""The parser's error messages, less the lines that say nothing to whoever wrote the config."""

from __future__ import annotations

import re
from textwrap import dedent

# What could not be read as one kind of value and was then tried as the next.
_NOISE = re.compile(
    r"does not validate against any|subtypes: \[|errors:$|given value( type)?: |"
    r"expected a <class '(str|NoneType)'>\.?( got value: Namespace.*)?$|"
    r"expected a path but .* either not accessible or invalid$",
    re.IGNORECASE,
)


def plain(message: str) -> str:
    """The message without its noise; as it was where nothing else would be left."""
    lines = message.strip().splitlines()
    kept = [line for line in lines if line.strip() and not _NOISE.match(line.strip(" -"))]
    return dedent("\n".join(kept)).removeprefix("- ") or message
