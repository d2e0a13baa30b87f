"""The snapshot has the shape of torch's, holds what the replay says, and is a pickle that the viewer can read."""

import pickle
import pickletools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.allocator_conf import DEFAULT_CONF, AllocatorConf
from sweeper.history import History, recorded
from sweeper.snapshot import PICKLE_PROTOCOL, pickled, snapshot
from sweeper.trace import Trace
from sweeper.units import MIB
from tests.traces import a_trace, golden, traces

# What ``unpickle`` of torch/utils/viz/MemoryViz.js (PyTorch 2.14) knows.
VIEWER_OPCODES = """
    APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME LONG1 LONG_BINGET MARK MEMOIZE PROTO SETITEMS
    SHORT_BINUNICODE STOP TUPLE2 APPEND NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE TUPLE1
    TUPLE3 LONG_BINPUT LIST DICT SETITEM
"""
CONFS = [DEFAULT_CONF, AllocatorConf.parse("expandable_segments:True,roundup_power2_divisions:8")]
each_conf = pytest.mark.parametrize("conf", CONFS, ids=["default", "expandable"])
capacities = st.none() | st.integers(2, 200).map(lambda pages: pages * MIB)


def histories() -> list[History]:
    golden_trace = golden(61)
    return [recorded(golden_trace, DEFAULT_CONF), recorded(golden_trace, DEFAULT_CONF, capacity_bytes=64 * MIB)]


@each_conf
@given(trace=traces(), capacity=capacities)
def test_the_segments_hold_what_is_allocated_in_the_end(
    conf: AllocatorConf, trace: Trace, capacity: int | None
) -> None:
    history = recorded(trace, conf, capacity_bytes=capacity)
    segments = snapshot(history)["segments"]
    allocated = sum(rows[-1] for rows in history.held().values()) if history.reached else 0
    assert sum(segment["allocated_size"] for segment in segments) == allocated
    # At a refusal the cache was given back, so then less is reserved than after the event before it.
    if history.reached and history.replay.fits:
        assert sum(segment["total_size"] for segment in segments) == history.reserved()[-1]
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
            live = block["state"] == "active_allocated"
            assert bool(block["frames"]) == live
            assert (0 < block["requested_size"] <= block["size"]) if live else block["requested_size"] == 0
        assert segment["requested_size"] == sum(block["requested_size"] for block in segment["blocks"])


@each_conf
@given(trace=traces(), capacity=capacities)
def test_the_entries_play_forward_to_the_blocks_there_are(
    conf: AllocatorConf, trace: Trace, capacity: int | None
) -> None:
    """As the viewer plays them backward: an address is free when it is handed out, and live when it is taken back."""
    found = snapshot(recorded(trace, conf, capacity_bytes=capacity))
    (entries,) = found["device_traces"]
    live: dict[int, int] = {}
    for place, entry in enumerate(entries):
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_requested":
            assert live[entry["addr"]] == entry["size"]
            after = entries[place + 1]
            assert (after["action"], after["addr"]) == ("free_completed", entry["addr"])
        elif entry["action"] == "free_completed":
            del live[entry["addr"]]
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    assert live == {b["address"]: b["requested_size"] for b in blocks if b["state"] == "active_allocated"}


@pytest.mark.parametrize("history", histories(), ids=["fits", "runs out"])
def test_the_frames_say_operator_module_step_phase_and_kind(history: History) -> None:
    (entries,) = snapshot(history)["device_traces"]
    made = [entry for entry in entries if entry["action"] in ("alloc", "oom")]
    starts = [event for event, number in enumerate(history.trace.events) if number >= 0]
    for number, entry in enumerate(made):
        label = history.trace.label(number)
        what, when, kind = entry["frames"]
        assert (what["name"], what["filename"]) == (label.operator, label.module or "the model")
        assert (when["line"], when["name"]) == (1 + history.trace.phase_at(starts[number])[1], label.phase)
        assert kind["name"] == label.kind
    assert {entry["frames"][1]["line"] for entry in made} >= {1}


def test_where_memory_ran_out_is_the_last_entry() -> None:
    fits, runs_out = (snapshot(history)["device_traces"][0] for history in histories())
    assert "oom" not in {entry["action"] for entry in fits}
    failure = histories()[1].replay.failure
    assert failure is not None
    assert runs_out[-1]["action"] == "oom"
    assert "addr" not in runs_out[-1]
    assert runs_out[-1]["device_free"] == failure.free_bytes
    assert failure.requested_bytes <= runs_out[-1]["size"] < failure.requested_bytes + 512
    assert (runs_out[-1]["frames"][0]["name"], runs_out[-1]["frames"][0]["filename"]) == (
        failure.label.operator,
        failure.label.module or "the model",
    )


@pytest.mark.parametrize("history", histories(), ids=["fits", "runs out"])
def test_the_pickle_is_plain_and_has_only_what_the_viewer_can_read(history: History) -> None:
    content = pickled(history)
    assert pickle.loads(content) == snapshot(history)
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(content)}
    assert opcodes <= set(VIEWER_OPCODES.split())
    assert 2 <= PICKLE_PROTOCOL <= 4
    assert _types(pickle.loads(content)) <= {dict, list, tuple, str, int, float, bool}
    # Each stack is there once: the viewer's memory is the browser's.
    stacks = {id(entry["frames"]) for entry in pickle.loads(content)["device_traces"][0]}
    assert len(stacks) <= 2 * len(history.trace.labels)


def _types(value: Any) -> set[type]:
    found = {type(value)}
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    for part in parts:
        found |= _types(part)
    return found


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {"max_split_size": -1, "expandable_segments": False, "garbage_collection_threshold": 0.0}),
        ("max_split_size_mb:32", {"max_split_size": 32 * MIB}),
        ("expandable_segments:True", {"expandable_segments": True}),
        ("garbage_collection_threshold:0.8", {"garbage_collection_threshold": 0.8}),
    ],
)
def test_the_settings_are_those_of_the_replay(text: str, settings: dict[str, Any]) -> None:
    found = snapshot(recorded(a_trace(), AllocatorConf.parse(text)))["allocator_settings"]
    assert settings.items() <= found.items()
    assert list(found["roundup_power2_divisions"]) == [str(2**n) for n in range(16)]
