"""A snapshot of a replay beside the one that torch's own allocator gives of the same allocations and frees."""

from collections.abc import Iterator
from typing import Any

import pytest

from sweeper.allocator_conf import AllocatorConf
from sweeper.history import recorded
from sweeper.snapshot import snapshot
from sweeper.trace import Trace
from sweeper.units import MIB
from tests.rig.build import Rig
from tests.rig.forked import Host, started
from tests.traces import golden

pytestmark = pytest.mark.rig

# What no replay can know: when, in what code, and settings that decide nothing about a block.
NOT_OURS = {"time_us", "frames", "compile_context", "user_metadata", "registration_counter", "fx_node"}


@pytest.fixture(scope="module")
def host(rig: Rig) -> Iterator[Host]:
    with started(rig.environment(256 * MIB)) as host:
        yield host


def both(rig: Rig, host: Host, trace: Trace, capacity: int, words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    environment = {**rig.environment(capacity), "PYTORCH_CUDA_ALLOC_CONF": words}
    theirs = host.answer("keep_history", environment, events=trace.events, sizes=trace.sizes)
    history = recorded(trace, AllocatorConf.parse(words), capacity_bytes=capacity, total_bytes=capacity)
    return theirs, snapshot(history)


def entries(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(action, bytes, where in its segment), in order; segments are where the driver put them, so without a place."""
    bases: list[tuple[int, int]] = []
    said = []
    for entry in found["device_traces"][0]:
        name, size, address = entry["action"], entry["size"], entry.get("addr", 0)
        if name in ("segment_alloc", "segment_map"):
            bases.append((address, address + size))
        if name in ("alloc", "free_requested", "free_completed"):
            base = next(low for low, high in reversed(bases) if low <= address < high)
            said.append((name, size, address - base))
        elif name != "snapshot":
            said.append((name, size, entry.get("device_free", 0)))
    return said


@pytest.mark.parametrize("capacity", [1024 * MIB, 64 * MIB], ids=["fits", "runs out"])
@pytest.mark.parametrize("words", ["", "max_split_size_mb:24"])
def test_the_entries_are_torchs_own_one_by_one(rig: Rig, host: Host, capacity: int, words: str) -> None:
    theirs, ours = both(rig, host, golden(61), capacity, words)
    assert entries(ours) == entries(theirs)
    assert ("oom" in {name for name, _, _ in entries(ours)}) == (capacity == 64 * MIB)


def _block(block: dict[str, Any]) -> tuple[int, str, int]:
    """Of a free block torch says what its last owner asked for, which means nothing."""
    live = block["state"] == "active_allocated"
    return block["size"], block["state"], block["requested_size"] if live else 0


@pytest.mark.parametrize("capacity", [1024 * MIB, 64 * MIB], ids=["fits", "runs out"])
def test_the_keys_and_the_segments_are_torchs_own(rig: Rig, host: Host, capacity: int) -> None:
    theirs, ours = both(rig, host, golden(61), capacity, "")
    assert {"segments", "device_traces", "allocator_settings"} == ours.keys() <= theirs.keys()
    assert ours["allocator_settings"].keys() <= theirs["allocator_settings"].keys()
    for key, value in ours["allocator_settings"].items():
        assert theirs["allocator_settings"][key] == value, key
    for mine, its in zip(ours["device_traces"][0], theirs["device_traces"][0], strict=False):
        assert (mine.keys() ^ its.keys()) <= NOT_OURS | {"pool_id"}
    shown = [
        {
            (
                segment["total_size"], segment["allocated_size"], segment["active_size"], segment["requested_size"],
                segment["segment_type"], segment["is_expandable"], segment["stream"], segment["device"],
                tuple(_block(block) for block in segment["blocks"]),
            )
            for segment in found["segments"]
        }
        for found in (ours, theirs)
    ]  # fmt: skip
    assert shown[0] == shown[1]
    for mine, its in zip(ours["segments"], theirs["segments"], strict=True):
        assert (mine.keys() ^ its.keys()) <= NOT_OURS
        assert (mine["blocks"][0].keys() ^ its["blocks"][0].keys()) <= NOT_OURS
