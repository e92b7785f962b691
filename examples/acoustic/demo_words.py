"""What the demo prints of its two runs: a row of the table for each, and a sentence on both."""

from __future__ import annotations

from examples.acoustic.link_times import LinkTimes
from examples.acoustic.run_system import Result
from examples.tables import megabytes, percent

# Times that differ by less do not tell the systems apart: runs of one system differ by as much.
_SAME_TIME = 0.05


def header(times: LinkTimes) -> tuple[str, ...]:
    """Names of the columns; those of the links say how their times were found."""
    links = (f"s over {link} ({times.how})" for link in times.seconds)
    return ("strategy", "frame errors", "word errors", "MB in groups", "MB across", *links)


def row(label: str, result: Result, times: LinkTimes) -> tuple[str, ...]:
    """One line of the table.

    Args:
        label: of the system.
        result: of its run. All bytes of DDP count as sent across groups.
        times: of steps over links.

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


def verdict(ours: Result, ddp: Result, times: LinkTimes) -> str:
    """One sentence: who wins by how much over each link, and where DDP is the better choice."""
    compared = {
        link: (times.seconds_of(link, ours), times.seconds_of(link, ddp)) for link in times.seconds
    }
    won = " and ".join(_over(link, *seconds) for link, seconds in compared.items())
    errors = f"{percent(ours.frame_error_rate)} and {percent(ddp.frame_error_rate)} frame errors"
    slower = [link for link, (own, theirs) in compared.items() if _is_faster(theirs, own)]
    equal = [link for link, (own, theirs) in compared.items() if not _is_faster(own, theirs)]
    here = ""
    if slower:
        here = f", as here at {' and '.join(slower)}"
    elif equal:
        here = f", as here at {' and '.join(equal)}, where it is as fast and has fewer settings"
    return (
        f"At {errors} of bmuf and DDP after equal epochs, {won} ({times.how}); DDP is the "
        "better choice on one host and wherever the network sends a gradient in a small part of a "
        f"step{here}."
    )


def _over(link: str, own: float, ddp: float) -> str:
    times = f"({own:.0f} s and {ddp:.0f} s)"
    if _is_faster(own, ddp):
        return f"bmuf is {ddp / own:.1f} times as fast as DDP over {link} {times}"
    if _is_faster(ddp, own):
        return f"DDP is {own / ddp:.1f} times as fast as bmuf over {link} {times}"
    return f"neither is faster by {100 * _SAME_TIME:.0f}% over {link} {times}"


def _is_faster(one: float, other: float) -> bool:
    return one * (1 + _SAME_TIME) <= other
