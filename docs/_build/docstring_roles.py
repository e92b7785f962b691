"""A Griffe extension that turns cross-references in docstrings into links of the site.

Public names become links. Internal names, which have no page, become code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|attr|mod):`~?([\w.]+)`")


class DocstringRoles(griffe.Extension):
    """Rewrites every docstring once, when Griffe has loaded it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a class, function, attribute or module.

        Double colons before indented equations, which are Sphinx's syntax, become colons.
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
