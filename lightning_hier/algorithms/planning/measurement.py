"""What has been measured of a cluster and a module, as one JSON text that plans are made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from lightning_hier.algorithms.arguments import check_keys, check_whole
from lightning_hier.algorithms.planning.network import Link, Network, Processor
from lightning_hier.algorithms.planning.workload import Workload

_FORMAT = 1

_Made = TypeVar("_Made", Link, Processor, Workload)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What ``lightning-hier measure`` writes.

    The text is an object with the names of these attributes and ``"format": 1``; what could not be
    measured is null or left out.

    Attributes:
        hosts: on which was measured.
        devices: ranks of each.
        within: between two ranks of a host; None where a host had one.
        between: between two hosts; None where there was one.
        processor: of a host; None where nobody has looked.
        workload: of the module; None where none was named.
        notes: free text by name: versions, backend, spread, date.

    Raises:
        ValueError: a value outside its range.

    """

    format: ClassVar[int] = _FORMAT

    hosts: int
    devices: int
    within: Link | None = None
    between: Link | None = None
    processor: Processor | None = None
    workload: Workload | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values."""
        check_whole("hosts", self.hosts)
        check_whole("devices", self.devices)
        if not all(isinstance(text, str) for pair in self.notes.items() for text in pair):
            raise ValueError(f"notes must be texts by name, got {dict(self.notes)!r}")

    def to_json(self) -> str:
        """As text, one attribute a line."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Read :meth:`to_json`'s text.

        Raises:
            ValueError: it is no such text; says what of it, and what would be right.

        """
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"a measurement must be JSON, and is not: {error}") from error
        known = {"format", *(own.name for own in fields(cls))}
        values = dict(check_keys("a measurement", found, {"format", "hosts", "devices"}, known))
        if values.pop("format") != _FORMAT:
            raise ValueError(
                f"this version reads measurements of format {_FORMAT}, got {found['format']!r}: "
                "measure again with it"
            )
        values["within"] = _read(Link, "within", values.get("within"))
        values["between"] = _read(Link, "between", values.get("between"))
        values["processor"] = _read(Processor, "processor", values.get("processor"))
        values["workload"] = _read(Workload, "workload", values.get("workload"))
        notes = values.setdefault("notes", {})
        if not isinstance(notes, Mapping):
            raise ValueError(f"notes must be texts by name, got {notes!r}")
        return cls(**values)

    def network(self) -> Network:
        """The cluster on which was measured.

        Where a kind of link is missing because nothing goes over it, the other one stands for it.

        Raises:
            ValueError: no link was measured, or one that is needed is missing.

        """
        if (self.hosts > 1 and self.between is None) or (self.devices > 1 and self.within is None):
            missing = "between" if self.hosts > 1 and self.between is None else "within"
            raise ValueError(
                f"{self.hosts} hosts of {self.devices} devices need the link {missing!r}, and the "
                "measurement has none: measure again, or name it"
            )
        between, within = self.between or self.within, self.within or self.between
        if between is None or within is None:
            raise ValueError("one rank exchanges nothing, and no link was measured: name both")
        return Network(
            hosts=self.hosts,
            devices=self.devices,
            within=within,
            between=between,
            processor=self.processor or Processor(),
        )


def _read(kind: type[_Made], name: str, found: Any) -> _Made | None:
    if found is None:
        return None
    own = fields(kind)
    needed = {each.name for each in own if not _has_default(each)}
    values = check_keys(f"{name!r} of a measurement", found, needed, {each.name for each in own})
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{name!r} of a measurement: {error}") from error


def _has_default(own: Field[Any]) -> bool:
    return own.default is not MISSING or own.default_factory is not MISSING
