"""An extension of Griffe: cross-references of docstrings become links of the site.

Public names are linked; what is inside the package is named without a link, as it has no page.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|attr|mod):`~?([\w.]+)`")


class DocstringRoles(griffe.Extension):
    """Reads every docstring once, when it is found."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a class, function, attribute or module.

        Double colons before indented equations are Sphinx's, too.
        """
        if obj.docstring is not None:
            text = _ROLE.sub(_link, obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _link(role: re.Match[str]) -> str:
    path = role.group(1)
    parts = path.split(".")
    if len(parts) == 2 and parts[0] == "lightning_hier":
        return f"[`{parts[1]}`][{path}]"
    return f"`{parts[-1]}`"
