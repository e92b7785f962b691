"""What was sent is added up by tier and kind and named for the loggers."""

from __future__ import annotations

from lightning_hier.comm.traffic import Count, Traffic


def _some_traffic() -> Traffic:
    traffic = Traffic()
    traffic.add("group", "gradients", payload_bytes=100.4, seconds=0.5)
    traffic.add("group", "gradients", payload_bytes=50, seconds=0.25)
    traffic.add("group", "gradient_counts", payload_bytes=8, seconds=0.25)
    traffic.add("across", "models", payload_bytes=1000, seconds=2.0)
    return traffic


def test_counts_add_up_by_tier_and_kind() -> None:
    traffic = _some_traffic()
    assert traffic.of("group", "gradients") == Count(150, 0.75, 2)
    assert traffic.total("group") == Count(158, 1.0, 3)
    assert traffic.total("across") == Count(1000, 2.0, 1)


def test_kind_that_was_not_sent_is_zero_and_stays_unnamed() -> None:
    traffic = _some_traffic()
    assert traffic.of("across", "gradients") == Count()
    assert not any("across/gradients" in name for name in traffic.metrics())


def test_names_for_the_loggers() -> None:
    metrics = _some_traffic().metrics()
    assert metrics["hier/group/gradients/payload_bytes"] == 150
    assert metrics["hier/group/gradients/calls"] == 2
    assert metrics["hier/across/models/seconds"] == 2.0
    assert metrics["hier/group/payload_bytes"] == 158
    assert metrics["hier/across/payload_bytes"] == 1000


def test_tiers_are_named_before_anything_is_sent() -> None:
    """A logger of a table wants the same columns from the first row on."""
    assert Traffic().metrics() == {
        "hier/group/payload_bytes": 0,
        "hier/group/seconds": 0.0,
        "hier/across/payload_bytes": 0,
        "hier/across/seconds": 0.0,
    }
