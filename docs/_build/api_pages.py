"""Griffe extensions of the site: links for cross-references, and the arguments of presets.

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


class PresetSignatures(griffe.Extension):
    """Gives presets the constructors that their base class has created."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the constructor of a preset, which is not in the source."""
        if "Preset" in map(str, cls.bases):
            created = griffe.inspect(cls.module.path)
            cls.set_member("__init__", created[f"{cls.name}.__init__"])


def _link(role: re.Match[str]) -> str:
    path = role.group(1)
    parts = path.split(".")
    if len(parts) == 2 and parts[0] == "lightning_hier":
        return f"[`{parts[1]}`][{path}]"
    return f"`{parts[-1]}`"
