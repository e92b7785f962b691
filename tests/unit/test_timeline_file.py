"""Files of trace events: valid at every moment, limited, and put together."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_hier.callbacks.timeline import Timeline, merge_timelines
from lightning_hier.callbacks.timeline.recorder import SHORTEST_WAIT_S, Lanes, Recorder
from lightning_hier.callbacks.timeline.trace_file import TraceFile
from tests.trainer.traces import check_form, read_open_array


def _recorder(path: Path, *, max_events: int = 10_000) -> Recorder:
    file = TraceFile(path, max_events=max_events)
    return Recorder(file, rank=3, host="somewhere", zero_s=100.0)


def _record(recorder: Recorder, number: int) -> None:
    for index in range(number):
        recorder.on_message("group", "gradients", 10, 100.0 + index, 100.5 + index)


def test_file_can_be_read_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "rank_00003.json"
    recorder = _recorder(path)
    for _ in range(5):
        _record(recorder, 700)
        check_form(read_open_array(path.read_text()))
    recorder.flush()
    events = read_open_array(path.read_text())
    assert sum(event["ph"] == "X" for event in events) == 3500
    recorder.close(5000.0, "end")
    assert json.loads(path.read_text())[-1]["args"] == {"events": 3500, "left_out": {}}


def test_what_is_beyond_the_limit_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "rank_00003.json"
    recorder = _recorder(path, max_events=4)
    _record(recorder, 6)
    recorder.on_synchronisation("the end of a block", 200.0, 201.0)
    recorder.flush()
    # A run that is killed now has said that the file is not the whole.
    said = [event["name"] for event in read_open_array(path.read_text()) if event["ph"] == "i"]
    assert said == ["max_events=4 reached: later events are left out"]
    assert recorder.left_out == 3
    recorder.close(300.0, "end")
    events = json.loads(path.read_text())
    assert sum(event["ph"] == "X" for event in events) == 4
    left_out = {"group": 2, "synchronisation": 1}
    assert events[-1]["args"] == {"events": 4, "left_out": left_out}


def test_events_of_several_threads_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "rank_00003.json"
    recorder = _recorder(path, max_events=100_000)
    threads = [Thread(target=_record, args=(recorder, 3000)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close(5000.0, "end")
    events = json.loads(path.read_text())
    check_form(events)
    assert sum(event["ph"] == "X" for event in events) == 12_000


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 100)), max_size=60))
def test_messages_of_a_lane_never_overlap(messages: list[tuple[int, int]]) -> None:
    lanes = Lanes(first=100)
    taken: dict[int, list[tuple[int, int]]] = {100: []}
    for begun, length in sorted(messages, key=sum):  # as they are complete
        lane, is_new = lanes.place(begun, begun + length)
        assert is_new == (lane not in taken)
        taken.setdefault(lane, []).append((begun, begun + length))
    for slices in taken.values():
        assert all(end <= begin for (_, end), (begin, _) in zip(slices, slices[1:], strict=False))


def test_message_that_nobody_waits_for_is_an_arrow_and_a_short_wait_is_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rank_00003.json"
    recorder = _recorder(path)
    recorder.on_message("across", "push", 77, 101.0, 101.0)
    recorder.on_wait("group", 101.0, 101.0 + SHORTEST_WAIT_S / 2)
    recorder.on_wait("group", 102.0, 102.5)
    recorder.close(103.0, "end")
    push, wait, _ = [event for event in json.loads(path.read_text()) if event["ph"] != "M"]
    assert (push["ph"], push["cat"], push["args"]) == ("i", "across", {"payload_bytes": 77})
    assert (wait["ts"], wait["dur"]) == (2e6, 5e5)


def test_files_of_ranks_become_one_even_if_one_was_cut_off(tmp_path: Path) -> None:
    for rank in range(3):
        recorder = _recorder(tmp_path / f"rank_{rank:05d}.json")
        _record(recorder, 20)
        recorder.close(300.0, "end")
    cut = tmp_path / "rank_00001.json"
    cut.write_text(cut.read_text()[:-300])
    merged = merge_timelines(tmp_path)
    events = json.loads(merged.read_text())
    assert merged == tmp_path / "timeline.json"
    whole = len(json.loads((tmp_path / "rank_00000.json").read_text()))
    assert 2 * whole < len(events) < 3 * whole
    assert merge_timelines(tmp_path, tmp_path / "other.json").read_text() == merged.read_text()


def test_mistakes_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no rank_\*\.json in .*: give the folder of one"):
        merge_timelines(tmp_path)
    with pytest.raises(ValueError, match="max_events must be at least 1, got 0"):
        Timeline(max_events=0)


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    recorder: Any = _recorder(tmp_path / "rank_00003.json")
    recorder.close(200.0, "end")
    before = (tmp_path / "rank_00003.json").read_text()
    _record(recorder, 5000)
    recorder.flush()
    recorder.close(300.0, "end")
    assert (tmp_path / "rank_00003.json").read_text() == before
