"""A recorded replay as the snapshot that ``torch.cuda.memory._snapshot()`` gives of a real run, for PyTorch's viewer.

The shape is that of ``torch/csrc/cuda/memory_snapshot.cpp`` (PyTorch 2.14): a list of ``segments`` with their blocks as
they were in the end, a list of entries for each device in ``device_traces``, and ``allocator_settings``.  A file of it,
made by ``pickled``, opens at pytorch.org/memory_viz and with ``python -m torch.cuda._memory_viz``.

A real snapshot has a stack of Python frames for each block.  A trace has labels, so there are three frames here, the
innermost first, and the viewer, which prints ``filename:line:name``, shows for example::

    layer1.0.conv1:0:convolution     the module and the operator
    step:1:forward                   the step, counted from 1, and its phase
    kind:0:activations               what the block held

Of a free block torch also says what its last owner asked for; here that is 0.  Left out: ``time_us``, because nothing
took any time; ``category``, which the viewer draws by, because it then stops with an error unless one of them is called
"unknown" (``annotate_snapshot``, torch/utils/viz/MemoryViz.js).
"""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from sweeper.allocator import Segment
from sweeper.allocator_conf import AllocatorConf
from sweeper.history import Action, History

__all__ = ["PICKLE_PROTOCOL", "pickled", "snapshot"]

# The viewer reads pickles of protocols 2 to 4 (``unpickle``, torch/utils/viz/MemoryViz.js).
PICKLE_PROTOCOL = 4

_DEVICE = 0
_POOL_ID = (0, 0)  # no private pool: those are CUDA graphs'

Frames = list[dict[str, str | int]]


def pickled(history: History) -> bytes:
    """The snapshot as a file's bytes."""
    return pickle.dumps(snapshot(history), protocol=PICKLE_PROTOCOL)


def snapshot(history: History) -> dict[str, Any]:
    """Return the snapshot: dicts, lists, tuples, strings and numbers only.  Sizes are bytes."""
    frames = _frames(history)
    owners: dict[int, int] = {}  # of the blocks that are live in the end, by address
    for action in history.actions:
        if action.name == "alloc":
            owners[action.address] = action.allocation
        elif action.name == "free":
            del owners[action.address]
    return {
        "segments": [_segment(segment, owners, frames) for segment in history.segments],
        "device_traces": [[entry for action in history.actions for entry in _entries(action, frames)]],
        "allocator_settings": _settings(history.conf),
    }


def _frames(history: History) -> Sequence[Frames]:
    """The frames of every allocation; an equal stack is one list, so that the file stays small."""
    trace, shared = history.trace, dict[tuple[int, int], Frames]()
    found: list[Frames] = []
    for event, number in enumerate(trace.events):
        if number < 0:
            continue
        label, step = trace.label(number), trace.phase_at(event)[1]
        stack: Frames = [
            {"filename": label.module or "the model", "line": 0, "name": label.operator},
            {"filename": "step", "line": step + 1, "name": label.phase},
            {"filename": "kind", "line": 0, "name": label.kind},
        ]
        found.append(shared.setdefault((trace.labels_of[number], step), stack))
    return found


def _entries(action: Action, frames: Sequence[Frames]) -> Iterator[dict[str, Any]]:
    names = ("free_requested", "free_completed") if action.name == "free" else (action.name,)
    for name in names:
        place = {"device_free": action.free_bytes} if name == "oom" else {"addr": action.address}
        yield {
            "action": name,
            **place,
            "size": action.size_bytes,
            "stream": 0,
            "pool_id": _POOL_ID,
            "frames": frames[action.allocation],
        }


def _segment(segment: Segment, owners: dict[int, int], frames: Sequence[Frames]) -> dict[str, Any]:
    allocated = sum(block.size_bytes for block in segment.blocks if block.allocated)
    return {
        "device": _DEVICE,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(block.requested_bytes for block in segment.blocks),
        "stream": segment.stream,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": _POOL_ID,
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size_bytes,
                "requested_size": block.requested_bytes,
                "state": "active_allocated" if block.allocated else "inactive",
                "frames": frames[owners[block.address]] if block.allocated else [],
            }
            for block in segment.blocks
        ],
    }


def _settings(conf: AllocatorConf) -> dict[str, Any]:
    """Those that decide where a block goes; no ``max_split_size`` is -1, as PyTorch's cast of SIZE_MAX is."""
    divisions = conf.roundup_power2_divisions or (0,) * 16
    return {
        "max_split_size": -1 if conf.max_split_size_bytes is None else conf.max_split_size_bytes,
        "garbage_collection_threshold": conf.garbage_collection_threshold,
        "expandable_segments": conf.expandable_segments,
        "roundup_power2_divisions": {str(1 << place): size for place, size in enumerate(divisions)},
    }
