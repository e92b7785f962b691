"""Error messages of the parser, without lines that do not help the author of a config."""

from __future__ import annotations

import re
from textwrap import dedent

# Lines about types that the parser tried in turn.
_NOISE = re.compile(
    r"does not validate against any|subtypes: \[|errors:$|given value( type)?: |"
    r"expected a <class '(str|NoneType)'>\.?( got value: Namespace.*)?$|"
    r"expected a path but .* either not accessible or invalid$",
    re.IGNORECASE,
)


def plain(message: str) -> str:
    """The message without such lines, or unchanged if nothing would remain."""
    lines = message.strip().splitlines()
    kept = [line for line in lines if line.strip() and not _NOISE.match(line.strip(" -"))]
    return dedent("\n".join(kept)).removeprefix("- ") or message
