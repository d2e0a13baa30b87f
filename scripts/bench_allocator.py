"""Times the replay of 5,000 allocator events, beside the plainest implementation of the same rules.

    PYTHONPATH=. python scripts/bench_allocator.py [HISTORY.json.gz ...]

Without arguments it replays the kept histories of ``tests/data/allocator`` whose rules the plain one knows (no
configuration, no refusal).  A history shorter than 5,000 events is repeated with everything freed in between.  Both
must reserve the same peak, or the comparison is void and the script says so.
"""

import gzip
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from sweeper.allocator import CachingAllocator
from sweeper.units import MIB

EVENTS = 5000
HISTORIES = Path(__file__).resolve().parents[1] / "tests" / "data" / "allocator"
KEPT = ("training", "streams", "edges")

Event = tuple[int, int, int]  # slot, bytes (0: free the slot), stream


class Allocator(Protocol):
    def allocate(self, requested_bytes: int, stream: int = 0) -> int: ...
    def free(self, address: int) -> None: ...


class PlainAllocator:
    """The rules for an endless device as one would first write them down: one list of blocks, searched through."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int, int, bool, bool, int]] = []  # address, size, stream, small, free, segment
        self.end = 0
        self.reserved = self.peak_reserved_bytes = 0

    def allocate(self, requested_bytes: int, stream: int = 0) -> int:
        size = -(-requested_bytes // 512) * 512
        small = size <= MIB
        fitting = [b for b in self.blocks if b[4] and b[2] == stream and b[3] == small and b[1] >= size]
        if not fitting:
            segment = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            fitting = [(self.end, segment, stream, small, True, self.end)]
            self.blocks.append(fitting[0])
            self.end += segment
            self.reserved += segment
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved)
        block = min(fitting, key=lambda b: (b[1], b[0]))
        address, length, *_, segment = block
        place = self.blocks.index(block)
        if length - size >= 512 if small else length - size > MIB:
            self.blocks.insert(place + 1, (address + size, length - size, stream, small, True, segment))
            length = size
        self.blocks[place] = (address, length, stream, small, False, segment)
        return address

    def free(self, address: int) -> None:
        place = next(place for place, block in enumerate(self.blocks) if block[0] == address)
        start, length, stream, small, _, segment = self.blocks[place]
        self.blocks[place] = (start, length, stream, small, True, segment)
        for first in (place, place - 1):
            if 0 <= first < len(self.blocks) - 1:
                one, other = self.blocks[first : first + 2]
                if one[4] and other[4] and one[5] == other[5]:
                    self.blocks[first : first + 2] = [(one[0], one[1] + other[1], *one[2:])]


def read(path: Path) -> list[Event]:
    """Return the allocations and frees of the history at ``path``, addresses replaced by slots, 5,000 of them."""
    history = json.loads(gzip.decompress(path.read_bytes()))
    at = {address: slot for slot, (address, _) in enumerate(history["start"]["live"])}
    events = [(slot, size, 0) for slot, (_, size) in enumerate(history["start"]["live"])]
    for kind, address, size, stream, *_ in history["events"]:
        if kind == "a":
            at[address] = len(events)
            events.append((len(events), size, stream))
        elif kind == "f":
            events.append((at.pop(address), 0, 0))
    events += [(slot, 0, 0) for slot in at.values()]
    return (events * (EVENTS // len(events) + 1))[:EVENTS]


def replay(allocator: Allocator, events: list[Event]) -> None:
    addresses: dict[int, int] = {}
    for slot, size, stream in events:
        if size:
            addresses[slot] = allocator.allocate(size, stream)
        else:
            allocator.free(addresses.pop(slot))


def milliseconds(make: Callable[[], Allocator], events: list[Event], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        allocator = make()
        start = time.perf_counter()
        replay(allocator, events)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1000


def main() -> None:
    paths = [Path(argument) for argument in sys.argv[1:]] or [HISTORIES / f"{name}.json.gz" for name in KEPT]
    print(f"{'history':<24}{'sweeper ms':>12}{'plain ms':>12}{'ratio':>8}   medians, {EVENTS} events")
    for path in paths:
        events = read(path)
        ours, plain = CachingAllocator(), PlainAllocator()
        replay(ours, events)
        replay(plain, events)
        if ours.peak_reserved_bytes != plain.peak_reserved_bytes:
            sys.exit(f"{path.name}: {ours.peak_reserved_bytes} and {plain.peak_reserved_bytes} bytes reserved")
        fast = milliseconds(CachingAllocator, events, 51)
        slow = milliseconds(PlainAllocator, events, 5)
        print(f"{path.name.split('.')[0]:<24}{fast:>12.2f}{slow:>12.2f}{slow / fast:>8.0f}")


if __name__ == "__main__":
    main()
