"""Write the golden traces of the present schema: ``python -m tests.data.trace.make_golden``.

small-cnn's step at three batches, as the worker traces it for a card of compute capability 8.9, with the cache given
back before each backward, and what replays of them say within some capacities.  Run once, when a schema is new.  The
folder it writes is never touched again; it refuses to.
"""

import json
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweeper.allocator import CachingAllocator
from sweeper.predicting import StepTracer
from sweeper.runner import ForkRunner
from sweeper.trace import SCHEMA, Trace, replay
from sweeper.trial import KINDS
from sweeper.units import MIB
from tests.builders import a_spec

SIZES = (4, 8, 61)
CAPACITIES = (None, 64 * MIB, 200 * MIB)


def main() -> None:
    folder = Path(__file__).parent / f"schema-{SCHEMA}"
    folder.mkdir()
    with closing(ForkRunner(timeout_s=120)) as runner, tempfile.TemporaryDirectory() as scratch:
        spec = a_spec(model="small-cnn", optimizer="adam", image_size=64, steps=2)
        taken = StepTracer(runner, Path(scratch) / "trace").traces(spec, "8.9", SIZES)
    taken = tuple(replace(trace, empties=_backwards(trace)) for trace in taken)
    for trace in taken:
        (folder / f"small-cnn-b{trace.batch_size}.json").write_text(trace.to_json() + "\n", encoding="utf-8")
    peaks = [_peaks(trace, capacity) for trace in taken for capacity in CAPACITIES]
    (folder / "peaks.json").write_text(json.dumps(peaks, indent=1) + "\n", encoding="utf-8")


def _backwards(trace: Trace) -> tuple[int, ...]:
    return tuple(mark.event for mark in trace.marks if mark.phase == "backward")


def _peaks(trace: Trace, capacity_bytes: int | None) -> dict[str, Any]:
    said = replay(trace, CachingAllocator(capacity_bytes=capacity_bytes))
    return {
        "batch": trace.batch_size,
        "capacity_bytes": capacity_bytes,
        "fits": said.fits,
        "peak_allocated_bytes": said.peak_allocated_bytes,
        "peak_reserved_bytes": said.peak_reserved_bytes,
        "breakdown": {kind: getattr(said.breakdown, kind) for kind in KINDS},
    }


if __name__ == "__main__":
    main()
