"""What PyTorch's own allocator did on the stand-in runtime, written down, and the simulation held against it.

A test file of this kind runs itself as a module under the runtime, with a folder as its argument; it imports torch once
and forks a child for each recording.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from sweeper.worker.devices.simulated import SimulatedDevice
from tests.rig.build import Rig

__all__ = [
    "answer",
    "assert_same_events",
    "events_of",
    "in_children",
    "ordered",
    "peaks_of",
    "recorded_training",
    "recordings_of",
]

_ROOT = Path(__file__).parents[2]


def recordings_of(module: str, rig: Rig, folder: Path) -> Path:
    """Run ``python -m MODULE FOLDER`` under the runtime, on a card of 80 GiB."""
    # Some operators of 2.14 are Triton's where their shapes allow it, as outer products are; no such kernel runs here.
    environment = {**os.environ, **rig.environment(80 << 30), "TORCH_DISABLE_NATIVE_JIT": "1"}
    command = [sys.executable, "-m", module, str(folder)]
    done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def in_children(folder: Path, recordings: Iterable[tuple[str, dict[str, str], Callable[[], Any]]]) -> None:
    """(name, environment, what gives the JSON): ``NAME.json`` in ``folder``, or ``NAME.error``."""
    torch.set_num_threads(1)
    for name, environment, record in recordings:
        child = os.fork()
        if child == 0:
            os.environ.update(environment)
            try:
                (folder / f"{name}.json").write_text(json.dumps(record()))
            except Exception:
                (folder / f"{name}.error").write_text(traceback.format_exc())
            os._exit(0)
        os.waitpid(child, 0)


def answer(folder: Path, name: str) -> Any:
    failure = folder / f"{name}.error"
    assert not failure.exists(), failure.read_text()
    return json.loads((folder / f"{name}.json").read_text())


def events_of(entries: Iterable[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Memory history as events and sizes, as in ``sweeper.trace``."""
    numbers: dict[int, int] = {}
    events: list[int] = []
    sizes: list[int] = []
    for entry in entries:
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = len(sizes)
            events.append(len(sizes))
            sizes.append(entry["size"])
        elif entry["action"] == "free_completed":
            events.append(~numbers.pop(entry["addr"]))
    return events, sizes


def ordered(events: list[int], sizes: list[int]) -> Iterator[tuple[int, int]]:
    """(event, bytes), frees that follow one another directly sorted."""
    run: list[int] = []
    for event in [*events, None]:
        if event is not None and event < 0:
            run.append(event)
            continue
        yield from ((freed, sizes[~freed]) for freed in sorted(run))
        run = []
        if event is not None:
            yield event, sizes[event]


def assert_same_events(
    device: SimulatedDevice, truth: dict[str, Any], batch_size: int, *, to_the_end: bool = True
) -> None:
    """Events, sizes and both peaks are those of ``truth``; the first difference is named.

    Unless ``to_the_end``, what is freed after the last allocation is left out: of a trial, whose meter keeps the model
    of a real device a little longer.
    """
    trace = device.trace(batch_size)
    said = list(ordered(list(trace.events), list(trace.sizes)))
    real = list(ordered(truth["events"], truth["sizes"]))
    for events in () if to_the_end else (said, real):
        while events[-1][0] < 0:
            events.pop()
    for index, (ours, theirs) in enumerate(zip(said, real, strict=False)):
        event = ours[0]
        assert ours == theirs, (index, trace.label(event if event >= 0 else ~event))
    assert len(said) == len(real)
    assert peaks_of(device) == truth["peaks"]


def peaks_of(device: SimulatedDevice) -> list[int]:
    usage = device.usage()
    return [usage.peak_allocated_bytes, usage.peak_reserved_bytes]


def recorded_training(work: Callable[[Any], None]) -> dict[str, Any]:
    """The history of ``work`` on the real ``cuda`` device, whole.  Runs in a process of its own."""
    from sweeper.worker.devices.cuda import CudaDevice

    device = CudaDevice(index=0, memory_limit_bytes=None)
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
    work(device)
    events, sizes = events_of(torch.cuda.memory._snapshot()["device_traces"][0])
    peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    return {"events": events, "sizes": sizes, "peaks": peaks}
