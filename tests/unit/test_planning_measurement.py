"""The JSON file of a measurement is read back unchanged, and errors name the mistake."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.planning import Link, Measurement, Processor

positive = st.floats(1e-9, 1e15)
links = st.builds(Link, latency_s=st.floats(0, 10), bytes_per_second=positive)
processors = st.builds(
    Processor,
    cores=st.none() | st.integers(1, 512),
    copy_bytes_per_second=positive,
    socket_bytes_per_second=st.none() | positive,
)
measurements = st.builds(
    Measurement,
    hosts=st.integers(1, 5000),
    devices=st.integers(1, 16),
    within=st.none() | links,
    between=st.none() | links,
    processor=st.none() | processors,
    notes=st.dictionaries(st.text(), st.text(), max_size=3),
)


@given(measurements)
def test_json_is_read_back_unchanged(measurement: Measurement) -> None:
    assert Measurement.from_json(measurement.to_json()) == measurement


def small(**changes: object) -> str:
    link = {"latency_s": 1e-4, "bytes_per_second": 1e8}
    return json.dumps({"format": 1, "hosts": 2, "devices": 1, "between": link, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "must be a JSON object"),
        ('{"format": 1, "hosts": 2}', "lacks 'devices'"),
        (small(format=2), "the format of a measurement must be 1, got 2"),
        (small(speed=3), "has no 'speed'; known are"),
        (small(hosts=0), "hosts must be a whole number of at least 1, got 0"),
        (small(hosts=2.5), "hosts must be a whole number"),
        (small(between={"latency_s": 1}), "'between' of a measurement: "),
        (
            small(between={"bytes_per_second": 0}),
            "'between' of a measurement: bytes_per_second must be a finite number above 0, got 0",
        ),
        (small(within=7), "'within' of a measurement: "),
    ],
)
def test_error_names_the_mistake(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Measurement.from_json(text)
    assert message in str(raised.value)
