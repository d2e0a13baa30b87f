"""The CUDA caching allocator of PyTorch, simulated: same blocks at the same places, without a GPU and without torch.

Theory of operation.  PyTorch takes memory from the driver in *segments* and hands it out in *blocks*:

1.  A request is rounded up, to a multiple of 512 bytes unless ``roundup_power2_divisions`` says otherwise.  Up to
    1 MiB it belongs to the *small* pool, above to the *large* one; each stream has its own pair of pools.
2.  The smallest free block that is large enough is taken, on ties the one at the lowest address.  (PyTorch 2.14 looks
    at the age of the segment first.  By default younger segments are placed at higher addresses here, so it is both.)
3.  When there is none, a new segment is asked of the driver: 2 MiB in the small pool; in the large one 20 MiB for
    requests below 10 MiB, otherwise the request rounded up to 2 MiB.
4.  A block that is larger than the request is split when the remainder is at least 512 bytes (small pool) or more
    than 1 MiB (large pool).  What is not split off stays in the block and counts as allocated.
5.  A freed block merges with its free neighbours inside the segment.  Segments never merge, and stay reserved.
6.  When the driver refuses, every wholly free segment of every stream is given back and the driver is asked once more
    (a *retry*); when it refuses again, the request is out of memory.  So a request fails exactly when what is reserved
    after giving back, plus the new segment, exceeds the capacity.

With ``expandable_segments`` a pool is one range of addresses that is mapped page by page (2 MiB small, 20 MiB large)
as it fills; giving back unmaps the free pages.  ``max_split_size_mb`` keeps large blocks whole, and lets the driver's
first refusal be met by giving back a block that would do.  ``garbage_collection_threshold`` gives back old blocks
before the driver is asked; it acts only under a memory fraction.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp``; a method that is one of its functions names it.  The tests
hold them against histories recorded from the real one.

What is not known here.  The driver is taken to give any segment that fits in what is left, in pages of 2 MiB; how far a
real one is from that near its limit is not known.  Where it puts a segment is its own business: ``place_segment`` says,
and by default addresses only grow.  Addresses decide nothing but ties between free blocks of one size.  Not simulated:
CUDA graphs' private pools, ``record_stream`` (free a block when its streams are done with it), a configuration that
changes midway.
"""

import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from sweeper.allocator_conf import DEFAULT_CONF, AllocatorConf
from sweeper.units import MIB

__all__ = [
    "AllocatorConf",
    "AllocatorOutOfMemory",
    "Block",
    "CachingAllocator",
    "Segment",
    "SegmentAction",
    "UnknownAddress",
]

UNLIMITED = sys.maxsize
DRIVER_PAGE_BYTES = 2 * MIB  # what a segment takes of the device is rounded up to this

# What is done to reserved memory, in the words of PyTorch's memory history (torch/csrc/cuda/memory_snapshot.cpp).
SegmentAction = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]


class UnknownAddress(KeyError):
    """``free`` of an address at which no live block starts."""


class AllocatorOutOfMemory(Exception):
    """A request that fits neither before nor after giving back the cache; the text is PyTorch's own.

    ``segment_bytes`` is what the driver was asked for, and what the text says was tried.  ``free_bytes`` is what the
    device had left, ``capacity_bytes`` what the allocator could have had in all.
    """

    def __init__(
        self,
        *,
        requested_bytes: int,
        segment_bytes: int,
        allocated_bytes: int,
        reserved_bytes: int,
        free_bytes: int,
        capacity_bytes: int,
        total_bytes: int,
        allowed_bytes: int | None = None,
    ) -> None:
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.free_bytes = free_bytes
        self.capacity_bytes = capacity_bytes
        allowed = "" if allowed_bytes is None else f"{_torch_size(allowed_bytes)} allowed; "
        super().__init__(
            f"CUDA out of memory. Tried to allocate {_torch_size(segment_bytes)}. GPU 0 has a total capacity of "
            f"{_torch_size(total_bytes)} of which {_torch_size(free_bytes)} is free. Including non-PyTorch memory, "
            f"this process has {_torch_size(total_bytes - free_bytes)} memory in use. {allowed}Of the allocated memory "
            f"{_torch_size(allocated_bytes)} is allocated by PyTorch, and "
            f"{_torch_size(reserved_bytes - allocated_bytes)} is reserved by PyTorch but unallocated. If reserved but "
            "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
            "fragmentation.  See documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
            "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        )


def _torch_size(size: int) -> str:
    """Return ``size`` bytes as the allocator writes it (``format_size``): a full unit stays in the smaller one."""
    if size <= 1 << 10:
        return f"{size} bytes"
    for shift, name in ((10, "KiB"), (20, "MiB")):
        if size <= 1 << (shift + 10):
            return f"{size / (1 << shift):.2f} {name}"
    return f"{size / (1 << 30):.2f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A piece of a segment; ``requested_bytes`` is what its owner asked for, 0 when it is free."""

    address: int
    size_bytes: int
    requested_bytes: int
    allocated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Memory taken from the driver in one piece, or a mapped stretch of an expandable range; its blocks by address."""

    address: int
    size_bytes: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[Block, ...]


_FREE, _LIVE, _UNMAPPED = range(3)


class _Block:
    """A block as the allocator moves it about, linked to its neighbours in the segment or range that starts at base."""

    __slots__ = ("address", "base", "born", "next", "pool", "previous", "requested", "size", "state")

    def __init__(self, base: int, address: int, size: int, pool: "_Pool", state: int) -> None:
        self.base = base
        self.address = address
        self.size = size
        self.pool = pool
        self.state = state
        self.requested = 0
        self.born = 0  # the search after which it was last put back, for garbage collection
        self.previous: _Block | None = None
        self.next: _Block | None = None

    def cut(self, size: int) -> "_Block":
        """Keep the first ``size`` bytes and return the rest as a block of its own, in the same state."""
        rest = _Block(self.base, self.address + size, self.size - size, self.pool, self.state)
        rest.previous, rest.next = self, self.next
        if rest.next is not None:
            rest.next.previous = rest
        self.next, self.size = rest, size
        return rest

    def absorb_next(self) -> None:
        other = self.next
        assert other is not None
        self.size += other.size
        self.next = other.next
        if self.next is not None:
            self.next.previous = self


class _Pool:
    """The free blocks of one pool and stream by (size, address), and the unmapped ones by address.

    A key is ``size << 64 | address``: one integer compares several times faster than a tuple of two.
    """

    __slots__ = ("blocks", "keys", "small", "stream", "unmapped")

    def __init__(self, *, small: bool, stream: int) -> None:
        self.small = small
        self.stream = stream
        self.keys: list[int] = []
        self.blocks: list[_Block] = []
        self.unmapped: list[_Block] = []

    def add(self, block: _Block) -> None:
        key = block.size << 64 | block.address
        place = bisect_left(self.keys, key)
        self.keys.insert(place, key)
        self.blocks.insert(place, block)

    def remove(self, block: _Block) -> None:
        place = bisect_left(self.keys, block.size << 64 | block.address)
        del self.keys[place]
        del self.blocks[place]


class CachingAllocator:
    """One device's allocator.  Sizes are bytes; the four totals and ``retries`` are for reading.

    ``capacity_bytes`` is what the driver can give in all, the context already taken off; None is without end.
    ``memory_fraction_limit_bytes`` is the limit of ``torch.cuda.set_per_process_memory_fraction``, in bytes: no segment
    is asked for that would take reserved memory past it (the last page of an expandable range may).  ``total_bytes`` is
    the device's memory as the driver reports it, which only the message, ``per_process_memory_fraction`` and the length
    of an expandable range look at; None is the capacity.  ``place_segment`` is called with the size of each new
    segment, or expandable range, and returns its address.  ``on_segment`` is told what is taken from the
    driver and what is given back, as it happens: the action, the address, the bytes.  Raises ``ValueError`` for a
    fraction of an unknown total.

    The upper-case attributes are the rules' constants (``c10/core/AllocatorConfig.h``).
    """

    MIN_BLOCK_BYTES = 512  # kMinBlockSize
    SMALL_BYTES = 1 * MIB  # kSmallSize
    SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer
    MIN_LARGE_BYTES = 10 * MIB  # kMinLargeAlloc
    ROUND_LARGE_BYTES = 2 * MIB  # kRoundLarge

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        conf: AllocatorConf = DEFAULT_CONF,
        place_segment: Callable[[int], int] | None = None,
        memory_fraction_limit_bytes: int | None = None,
        total_bytes: int | None = None,
        on_segment: Callable[[SegmentAction, int, int], None] | None = None,
    ) -> None:
        self.conf = conf
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.retries = 0
        self._total = capacity_bytes if total_bytes is None else total_bytes
        self._capacity = UNLIMITED if capacity_bytes is None else capacity_bytes
        self._limit = memory_fraction_limit_bytes
        if self._limit is None and conf.per_process_memory_fraction < 1:
            if self._total is None:
                raise ValueError("per_process_memory_fraction is of the device's memory: give total_bytes")
            self._limit = int(conf.per_process_memory_fraction * self._total)  # setMemoryFraction
        self._collects = conf.garbage_collection_threshold > 0 and self._limit is not None
        self._searches = 0
        self._padding = 0  # what the driver's pages add to reserved; 0 but for odd values of large_segment_size_mb
        self._place_segment = self._next_address if place_segment is None else place_segment
        self._on_segment = _ignore if on_segment is None else on_segment
        self._free_address = 1 << 40
        self._pools: dict[tuple[bool, int], _Pool] = {}
        self._live: dict[int, _Block] = {}
        self._heads: dict[int, _Block] = {}  # the first block of every segment or range, by address

    def allocate(self, requested_bytes: int, stream: int = 0) -> int:
        """Return the address of a block of at least ``requested_bytes``; 0, and no block, for 0 bytes (``malloc``).

        Raises ``AllocatorOutOfMemory``, after which every live block is where it was.
        """
        if requested_bytes <= 0:
            if requested_bytes < 0:
                raise ValueError(f"cannot allocate {requested_bytes} bytes")
            return 0
        size = self._rounded(requested_bytes)
        small = size <= self.SMALL_BYTES
        pool = self._pools.get((small, stream))
        if pool is None:
            pool = self._pools[small, stream] = _Pool(small=small, stream=stream)
        block = self._take_best_fit(pool, size)
        if block is None:
            block = self._take_new(pool, size, requested_bytes)
        if block.size != size and self._splits(pool, block.size, size):
            self._put_back(block.cut(size))
        block.state = _LIVE
        block.requested = requested_bytes
        self._live[block.address] = block
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block.address

    def free(self, address: int) -> None:
        """Take back the block at ``address``; 0 is no block.  Raises ``UnknownAddress`` when none is live there."""
        block = self._live.pop(address, None)
        if block is None:
            if address == 0:
                return
            raise UnknownAddress(f"no live block starts at {address:#x}")
        self.allocated_bytes -= block.size
        block.state = _FREE
        block.requested = 0
        self._put_back(self._merged(block))

    def empty_cache(self) -> None:
        """Give back all that is wholly free, as ``torch.cuda.empty_cache`` does (``release_cached_blocks``)."""
        for _, pool in sorted(self._pools.items()):  # the large pools first, by stream
            for block in list(pool.blocks):
                if self.conf.expandable_segments:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    self._release(block)

    def reset_peaks(self) -> None:
        """Make the peaks the present values."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    @property
    def largest_free_block_bytes(self) -> int:
        """The largest request that would need no new memory, on the stream that holds it; 0 when nothing is free."""
        return max((pool.blocks[-1].size for pool in self._pools.values() if pool.blocks), default=0)

    def segments(self) -> tuple[Segment, ...]:
        """Return what is reserved now, by address; an expandable range gives a segment a mapped stretch."""
        found = []
        for head in self._heads.values():
            stretch: list[_Block] = []
            block: _Block | None = head
            while block is not None:
                if block.state != _UNMAPPED:
                    stretch.append(block)
                if stretch and (block.state == _UNMAPPED or block.next is None):
                    found.append(self._snapshot(stretch))
                    stretch = []
                block = block.next
        return tuple(sorted(found, key=lambda segment: segment.address))

    def restore(self, segments: Iterable[Segment]) -> None:
        """Start from ``segments``, taken elsewhere.  Raises ``ValueError`` once in use, or if expandable."""
        if self._heads or self.conf.expandable_segments:
            raise ValueError("only a new allocator without expandable segments can start from a snapshot")
        for segment in segments:
            key = (segment.small, segment.stream)
            pool = self._pools.setdefault(key, _Pool(small=segment.small, stream=segment.stream))
            rest = self._new_segment(pool, segment.size_bytes, segment.address)
            for place, block in enumerate(segment.blocks):
                current = rest
                if place < len(segment.blocks) - 1:
                    rest = current.cut(block.size_bytes)
                if block.allocated:
                    current.state, current.requested = _LIVE, block.requested_bytes
                    self._live[current.address] = current
                    self.allocated_bytes += current.size
                else:
                    self._put_back(current)
        self.reset_peaks()

    # The rules

    def _rounded(self, requested: int) -> int:
        """``round_size``"""
        divisions = self.conf.roundup_power2_divisions
        if divisions:
            count = divisions[min(max(requested.bit_length() - 21, 0), 15)]
            if count > 1 and requested > self.MIN_BLOCK_BYTES * count:
                step = (1 << (requested.bit_length() - 1)) // count
                return -(-requested // step) * step
        return (requested + self.MIN_BLOCK_BYTES - 1) // self.MIN_BLOCK_BYTES * self.MIN_BLOCK_BYTES

    def _segment_bytes(self, size: int) -> int:
        """``get_allocation_size``"""
        if size <= self.SMALL_BYTES:
            return self.SMALL_SEGMENT_BYTES
        if size < self.MIN_LARGE_BYTES:
            return self.conf.large_segment_bytes
        return -(-size // self.ROUND_LARGE_BYTES) * self.ROUND_LARGE_BYTES

    def _splits(self, pool: _Pool, block_size: int, size: int) -> bool:
        """``should_split``"""
        remainder = block_size - size
        if pool.small or self.conf.expandable_segments:
            return remainder >= self.MIN_BLOCK_BYTES
        longest = self.conf.max_split_size_bytes
        return remainder > self.SMALL_BYTES and (longest is None or size < longest)

    def _take_best_fit(self, pool: _Pool, size: int) -> _Block | None:
        """``get_free_block``"""
        if self._collects and not pool.small:
            self._searches += 1
        keys = pool.keys
        place = bisect_left(keys, size << 64)
        if place == len(keys):
            return None
        if self.conf.expandable_segments:
            # A block at the edge of the mapped part counts with all it could grow to, so that it is left for last.
            while place + 1 < len(keys) and _room(pool.blocks[place + 1]) < _room(pool.blocks[place]):
                place += 1
        block = pool.blocks[place]
        longest = self.conf.max_split_size_bytes
        if longest is not None:
            if size < longest <= block.size:
                return None
            slack = self.conf.max_non_split_rounding_bytes or self.conf.large_segment_bytes
            if size >= longest and block.size >= size + slack:
                return None
        del keys[place]
        del pool.blocks[place]
        return block

    def _put_back(self, block: _Block) -> None:
        """``insert_into_blocks``"""
        block.born = self._searches
        block.pool.add(block)

    def _merged(self, block: _Block) -> _Block:
        """Return ``block`` with its free neighbours joined to it and taken from the pool (``try_merge_blocks``)."""
        after, before = block.next, block.previous
        if after is not None and after.state == _FREE:
            block.pool.remove(after)
            block.absorb_next()
        if before is not None and before.state == _FREE:
            block.pool.remove(before)
            before.absorb_next()
            return before
        return block

    def _take_new(self, pool: _Pool, size: int, requested: int) -> _Block:
        """Ask the driver, with less and less in the cache (``malloc``, after the search)."""
        if self._collects:
            self._collect_garbage()
        block = self._ask_driver(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._ask_driver(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._ask_driver(pool, size)
        if block is None:
            raise self._out_of_memory(size, requested)
        return block

    def _ask_driver(self, pool: _Pool, size: int) -> _Block | None:
        """Return a new block of at least ``size`` bytes, in no free list, or None (``alloc_block``)."""
        segment_bytes = self._segment_bytes(size)
        if self._limit is not None and self.reserved_bytes + segment_bytes > self._limit:
            return None
        if self.conf.expandable_segments:
            return self._grow(pool, size)
        if self.reserved_bytes + self._padding + segment_bytes + -segment_bytes % DRIVER_PAGE_BYTES > self._capacity:
            return None
        address = self._place_segment(segment_bytes)
        self._on_segment("segment_alloc", address, segment_bytes)
        return self._new_segment(pool, segment_bytes, address)

    def _out_of_memory(self, size: int, requested: int) -> AllocatorOutOfMemory:
        capacity = self._capacity if self._limit is None else min(self._capacity, self._limit)
        free = (capacity if self._capacity == UNLIMITED else self._capacity) - self.reserved_bytes - self._padding
        return AllocatorOutOfMemory(
            requested_bytes=requested,
            segment_bytes=self._segment_bytes(size),
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            free_bytes=max(free, 0),
            capacity_bytes=capacity,
            total_bytes=capacity if self._total is None else self._total,
            allowed_bytes=self._limit,
        )

    # Segments

    def _new_segment(self, pool: _Pool, size: int, address: int) -> _Block:
        block = _Block(address, address, size, pool, _FREE)
        self._heads[address] = block
        self._padding += -size % DRIVER_PAGE_BYTES
        self._reserve(size)
        return block

    def _release(self, block: _Block) -> None:
        """Give back the segment that ``block`` is the whole of (``release_block``)."""
        block.pool.remove(block)
        self._on_segment("segment_free", block.address, block.size)
        del self._heads[block.base]
        self._padding -= -block.size % DRIVER_PAGE_BYTES
        self.reserved_bytes -= block.size

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    def _release_oversize(self, pool: _Pool, size: int) -> bool:
        """Give back the smallest unsplit block that would do, or the largest until they would; True when they do.

        (``release_available_cached_blocks``)
        """
        longest = self.conf.max_split_size_bytes
        if longest is None or self.conf.expandable_segments:
            return False
        wanted, released = max(size, longest), 0
        place = bisect_left(pool.keys, wanted << 64)
        if place < len(pool.keys):
            self._release(pool.blocks[place])
            return True
        while released < wanted and pool.blocks and pool.blocks[-1].size >= longest:
            released += pool.blocks[-1].size
            self._release(pool.blocks[-1])
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Give back the unsplit large blocks unused for longest (``garbage_collect_cached_blocks``).

        Age is counted in searches of the large pool.  The average age is drawn again after each pass.
        """
        assert self._limit is not None
        target = self.reserved_bytes - int(self.conf.garbage_collection_threshold * self._limit)
        if target <= 0 or self.conf.expandable_segments:
            return
        large = [pool for _, pool in sorted(self._pools.items()) if not pool.small]
        blocks = [b for pool in large for b in pool.blocks if b.previous is None and b.next is None]
        reclaimed = 0
        while blocks and reclaimed < target:
            average = sum(self._searches - b.born for b in blocks) / len(blocks)
            # PyTorch draws the average once a pass and frees all that reach it, however little was wanted.
            old = [b for b in blocks if self._searches - b.born >= average]
            for block in old:
                reclaimed += block.size
                self._release(block)
            blocks = [b for b in blocks if self._searches - b.born < average]

    def _snapshot(self, blocks: list[_Block]) -> Segment:
        first, last = blocks[0], blocks[-1]
        return Segment(
            address=first.address,
            size_bytes=last.address + last.size - first.address,
            stream=first.pool.stream,
            small=first.pool.small,
            expandable=self.conf.expandable_segments,
            blocks=tuple(
                Block(address=b.address, size_bytes=b.size, requested_bytes=b.requested, allocated=b.state == _LIVE)
                for b in blocks
            ),
        )

    def _next_address(self, size: int) -> int:
        """Addresses that only grow, 2 MiB aligned, with a gap after each segment so that no two ever touch."""
        address = self._free_address
        self._free_address = address + (size // DRIVER_PAGE_BYTES + 2) * DRIVER_PAGE_BYTES
        return address

    # Expandable ranges

    def _page_bytes(self, pool: _Pool) -> int:
        return self.SMALL_SEGMENT_BYTES if pool.small else self.conf.large_segment_bytes

    def _grow(self, pool: _Pool, size: int) -> _Block | None:
        """Map pages until a free block holds ``size`` bytes; what was mapped stays if the driver refuses.

        (``try_allocate_expandable_block``)
        """
        block: _Block | None = self._lowest_room(pool, size)
        assert block is not None
        if block.state == _UNMAPPED:
            block = self._map(block, min(block.size, size))
        while block is not None and block.size < size:
            after = block.next
            assert after is not None
            block = self._map(after, min(size - block.size, after.size))
        if block is not None:
            pool.remove(block)
        return block

    def _lowest_room(self, pool: _Pool, size: int) -> _Block:
        """Return the first of free and unmapped blocks in a row that hold ``size`` bytes (``find_expandable_block``).

        A new range is reserved when there is none: addresses for 1 1/8 of the device, in whole pages.
        """
        for unmapped in pool.unmapped:
            before = unmapped.previous
            first = before if before is not None and before.state == _FREE else unmapped
            room, block = 0, first
            while room < size and block.state != _LIVE:
                room += block.size
                if block.next is None:
                    break
                block = block.next
            if room >= size:
                return first
        page = self._page_bytes(pool)
        total = self._total if self._total is not None else max(64 * size, 1 << 42)
        range_bytes = max(-(-(total + total // 8) // page), -(-size // page)) * page
        address = self._place_segment(range_bytes)
        block = _Block(address, address, range_bytes, pool, _UNMAPPED)
        self._heads[address] = block
        insort(pool.unmapped, block, key=_address)
        return block

    def _map(self, block: _Block, size: int) -> _Block | None:
        """Map the first pages of ``block`` and return the free block they end up in, or None (``map_block``)."""
        page = self._page_bytes(block.pool)
        mapped = -(-size // page) * page
        if self.reserved_bytes + mapped > self._capacity:
            return None
        block.pool.unmapped.remove(block)
        if mapped < block.size:
            insort(block.pool.unmapped, block.cut(mapped), key=_address)
        block.state = _FREE
        self._on_segment("segment_map", block.address, mapped)
        block = self._merged(block)
        self._put_back(block)
        self._reserve(mapped)
        return block

    def _unmap(self, block: _Block) -> None:
        """Give back the pages that lie wholly in the free ``block`` (``unmap_block``)."""
        pool, page = block.pool, self._page_bytes(block.pool)
        begin = block.base - (block.base - block.address) // page * page
        end = block.base + (block.address + block.size - block.base) // page * page
        if begin >= end:
            return
        pool.remove(block)
        self._on_segment("segment_unmap", begin, end - begin)
        if begin > block.address:
            rest = block.cut(begin - block.address)
            self._put_back(block)
            block = rest
        if block.size > end - begin:
            self._put_back(block.cut(end - begin))
        self.reserved_bytes -= block.size
        block.state = _UNMAPPED
        if block.next is not None and block.next.state == _UNMAPPED:
            pool.unmapped.remove(block.next)
            block.absorb_next()
        if block.previous is not None and block.previous.state == _UNMAPPED:
            block = block.previous
            block.absorb_next()
        else:
            insort(pool.unmapped, block, key=_address)
        if block.previous is None and block.next is None:
            pool.unmapped.remove(block)
            del self._heads[block.base]


def _ignore(_action: SegmentAction, _address: int, _size: int) -> None:
    """No one is told."""


def _address(block: _Block) -> int:
    return block.address


def _room(block: _Block) -> int:
    """What an expandable block could grow to."""
    after = block.next
    return block.size + (after.size if after is not None and after.state == _UNMAPPED else 0)
