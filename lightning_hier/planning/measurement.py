"""The JSON file that ``lightning-hier measure`` writes and ``lightning-hier plan`` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeVar

from lightning_hier.algorithms.arguments import check_keys, check_whole
from lightning_hier.planning.network import Link, Processor
from lightning_hier.planning.workload import Workload

# To be increased when the meaning of a field changes, so that older files are refused.
_FORMAT = 1
_PARTS = {"within": Link, "between": Link, "processor": Processor, "workload": Workload}
_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measurements of a cluster and of a module. None means not measured.

    Attributes:
        hosts: number of hosts.
        devices: ranks of one host.
        within: link between two ranks of one host.
        between: link between two hosts.
        processor: processor of one host.
        workload: workload of the module.
        notes: texts by name: versions, backend, date.

    """

    hosts: int
    devices: int
    within: Link | None = None
    between: Link | None = None
    processor: Processor | None = None
    workload: Workload | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("hosts", self.hosts)
        check_whole("devices", self.devices)
        if not isinstance(self.notes, Mapping):
            raise ValueError(f"notes must be texts by name, got {self.notes!r}")

    def to_json(self) -> str:
        """Return the measurement as JSON text."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Read the text of :meth:`to_json`.

        Raises:
            ValueError: the text is not a measurement, or has another format.

        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"a measurement must be JSON: {error}") from error
        known = {"format", *(entry.name for entry in fields(cls))}
        values = dict(check_keys("a measurement", values, {"format", "hosts", "devices"}, known))
        if (version := values.pop("format")) != _FORMAT:
            raise ValueError(
                f"the format of a measurement must be {_FORMAT}, got {version}: measure again"
            )
        for name, kind in _PARTS.items():
            if values.get(name) is not None:
                values[name] = _read(kind, name, values[name])
        return cls(**values)


def _read(kind: Callable[..., _Part], name: str, values: Any) -> _Part:
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name!r} of a measurement: {error}") from error
