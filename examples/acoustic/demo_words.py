"""Table and summary of the two runs of the demo."""

from __future__ import annotations

from examples.acoustic.link_times import LinkTimes
from examples.acoustic.run_system import Result
from examples.tables import megabytes, percent

# Times of runs of one system differ by this fraction, so smaller differences are not significant.
_SAME_TIME = 0.05


def header(times: LinkTimes) -> tuple[str, ...]:
    """Return the names of the columns. Those of links contain "measured" or "predicted"."""
    links = (f"s over {link} ({times.how})" for link in times.seconds)
    return ("strategy", "frame errors", "word errors", "MB in groups", "MB across", *links)


def row(label: str, result: Result, times: LinkTimes) -> tuple[str, ...]:
    """Return a row of the table.

    Args:
        label: name of the system.
        result: result of its run. All bytes of DDP are counted as sent across groups.
        times: times of steps over links.

    """
    is_ddp = result.settings["system"] == "ddp"
    inside, across = result.group_bytes, result.across_bytes
    return (
        label,
        percent(result.frame_error_rate),
        percent(result.word_error_rate),
        "-" if is_ddp else megabytes(inside),
        megabytes(inside if is_ddp else across),
        *(f"{times.seconds_of(link, result):.0f}" for link in times.seconds),
    )


def comparison(ours: Result, ddp: Result, times: LinkTimes) -> str:
    """Return a sentence on the faster system over each link, and on the use of DDP."""
    seconds = {
        link: (times.seconds_of(link, ours), times.seconds_of(link, ddp)) for link in times.seconds
    }
    faster = " and ".join(_over(link, *pair) for link, pair in seconds.items())
    errors = f"{percent(ours.frame_error_rate)} and {percent(ddp.frame_error_rate)} frame errors"
    slower = [link for link, (bmuf_s, ddp_s) in seconds.items() if _is_faster(ddp_s, bmuf_s)]
    equal = [link for link, (bmuf_s, ddp_s) in seconds.items() if not _is_faster(bmuf_s, ddp_s)]
    here = ""
    if slower:
        here = f", as here at {' and '.join(slower)}"
    elif equal:
        here = f", as here at {' and '.join(equal)}, where it is as fast and has fewer settings"
    return (
        f"At {errors} of bmuf and DDP after equal epochs, {faster} ({times.how}); DDP is the "
        "better choice on one host and wherever the network sends a gradient in a small part of a "
        f"step{here}."
    )


def _over(link: str, bmuf_s: float, ddp_s: float) -> str:
    times = f"({bmuf_s:.0f} s and {ddp_s:.0f} s)"
    if _is_faster(bmuf_s, ddp_s):
        return f"bmuf is {ddp_s / bmuf_s:.1f} times as fast as DDP over {link} {times}"
    if _is_faster(ddp_s, bmuf_s):
        return f"DDP is {bmuf_s / ddp_s:.1f} times as fast as bmuf over {link} {times}"
    return f"neither is faster by {100 * _SAME_TIME:.0f}% over {link} {times}"


def _is_faster(one: float, other: float) -> bool:
    return one * (1 + _SAME_TIME) <= other
