"""Records the histories of this folder from PyTorch's own allocator, over a stand-in CUDA runtime.

Run from the root of the repository, inside the stand-in runtime of ``tests/rig`` (built for the PyTorch in use), whose
knobs ``RIG_BYTES`` and ``RIG_CTX_BYTES`` are set here for each history::

    rig python tests/data/allocator/make_traces.py [NAME ...]

A history is what ``torch.cuda.memory._record_memory_history`` saw from the first allocation of a process on: kinds
a alloc, f free, A segment_alloc, F segment_free, O out of memory (second column: free bytes of the device), each with
address, bytes, stream; beside it the allocator's configuration, the capacity and the memory fraction it ran under.
Addresses differ from run to run, nothing else should.  The kept files were made with torch 2.14.1+cu130.
"""

import gzip
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MIB = 1 << 20
CONTEXT_BYTES = 30 * MIB
THRESHOLDS = [
    512, 1024, 4096, MIB // 2, MIB, 3 * MIB // 2, 2 * MIB, 9 * MIB, 10 * MIB, 12 * MIB, 19 * MIB, 20 * MIB,
]  # fmt: skip
OFFSETS = [-513, -512, -511, -1, 0, 1, 511, 512, 513]
KINDS = {"alloc": "a", "free_completed": "f", "segment_alloc": "A", "segment_free": "F", "oom": "O"}


@dataclass(frozen=True)
class Scenario:
    """What runs, on a device of how many MiB, under which words of PYTORCH_CUDA_ALLOC_CONF and memory fraction."""

    run: Callable[[Any], None]
    device_mib: int = 16384
    conf: str = ""
    fraction: float | None = None


def training(torch: Any) -> None:
    """A small CNN, AdamW, three steps; the cache is emptied before the last."""
    model = _cnn(torch)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        if step == 2:
            torch.cuda.empty_cache()
        _step(torch, model, optimizer, batch=24 + step)


def out_of_memory(torch: Any) -> None:
    """The same on a small device while the batch grows until it does not fit, then at sizes that do again."""
    model = _cnn(torch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in (8, 24, 16, 40, 56, 64, 80, 200, 8, 48):
        try:
            _step(torch, model, optimizer, batch=batch)
        except torch.OutOfMemoryError:
            optimizer.zero_grad()


def streams(torch: Any) -> None:
    """Tensors made and dropped on three streams, at sizes that would fit each other's free blocks."""
    _churn(torch, seed=1, count=500, sizes=_mixed, side_streams=2)


def edges(torch: Any) -> None:
    """Sizes at and next to every threshold of the rules: each one from an empty cache, then all of them mixed."""
    for size in [threshold + offset for threshold in THRESHOLDS for offset in OFFSETS]:
        tensor = torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")
        del tensor
        torch.cuda.empty_cache()
    _churn(torch, seed=2, count=700, sizes=_at_thresholds)


def crowded(torch: Any) -> None:
    """Mixed sizes on a device that is too small for them: retries and refusals."""
    _churn(torch, seed=3, count=700, sizes=_mixed, side_streams=1)


def large(torch: Any) -> None:
    """Sizes of 1 to 160 MiB on a device that is too small for them."""
    _churn(torch, seed=4, count=500, sizes=_large, keep=24)


SCENARIOS = {
    "training": Scenario(training),
    "out-of-memory": Scenario(out_of_memory, device_mib=320),
    "streams": Scenario(streams),
    "edges": Scenario(edges),
    "crowded": Scenario(crowded, device_mib=350),
    "max-split": Scenario(large, device_mib=900, conf="max_split_size_mb:32"),
    "max-split-rounding": Scenario(large, device_mib=900, conf="max_split_size_mb:40,max_non_split_rounding_mb:60"),
    "large-segment": Scenario(large, device_mib=1200, conf="large_segment_size_mb:45,max_split_size_mb:64"),
    "roundup": Scenario(edges, conf="roundup_power2_divisions:[1:2,2:4,8:1,16:8,>:0]"),
    "roundup-all": Scenario(large, conf="roundup_power2_divisions:4"),
    "garbage": Scenario(large, device_mib=2400, conf="garbage_collection_threshold:0.6", fraction=0.5),
    "fraction": Scenario(crowded, device_mib=1000, conf="per_process_memory_fraction:0.35"),
}


def _cnn(torch: Any) -> Any:
    nn = torch.nn
    layers = [
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(1024, 1500), nn.GELU(), nn.Linear(1500, 10),
    ]  # fmt: skip
    return nn.Sequential(*layers).cuda()


def _step(torch: Any, model: Any, optimizer: Any, *, batch: int) -> None:
    inputs = torch.empty(batch, 3, 64, 64, device="cuda")
    targets = torch.zeros(batch, dtype=torch.long, device="cuda")
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()


def _mixed(chance: random.Random) -> int:
    return int(2 ** chance.uniform(4, 25.5))


def _large(chance: random.Random) -> int:
    return int(MIB * 2 ** chance.uniform(0, 7.3))


def _at_thresholds(chance: random.Random) -> int:
    return chance.choice(THRESHOLDS) + chance.choice(OFFSETS)


def _churn(
    torch: Any,
    *,
    seed: int,
    count: int,
    sizes: Callable[[random.Random], int],
    side_streams: int = 0,
    keep: int = 60,
) -> None:
    """Make ``count`` tensors, dropping some at random so that about ``keep`` live; half of them when one is refused."""
    chance = random.Random(seed)
    side = [torch.cuda.Stream() for _ in range(side_streams)]
    live: list[Any] = []
    for _ in range(count):
        while live and (len(live) > keep or chance.random() < 0.45):
            live.pop(chance.randrange(len(live)))
        size = max(sizes(chance), 1)
        stream = chance.choice([torch.cuda.default_stream(), *side])
        try:
            with torch.cuda.stream(stream):
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            del live[len(live) // 2 :]


def record(name: str) -> None:
    """Run one scenario in this process and write its history."""
    import torch

    scenario = SCENARIOS[name]
    torch.cuda.memory._record_memory_history(max_entries=100_000, context=None)
    if scenario.fraction is not None:
        torch.cuda.set_per_process_memory_fraction(scenario.fraction)
    scenario.run(torch)
    total_bytes = scenario.device_mib * MIB
    events = []
    for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
        if kind := KINDS.get(entry["action"]):
            place = entry["device_free"] if kind == "O" else entry["addr"]
            events.append([kind, place, entry["size"], entry["stream"]])
    history = {
        "schema": 1,
        "torch": torch.__version__,
        "conf": scenario.conf,
        "total_bytes": total_bytes,
        "capacity_bytes": total_bytes - CONTEXT_BYTES,
        "memory_fraction_limit_bytes": None if scenario.fraction is None else int(scenario.fraction * total_bytes),
        "expandable": False,
        "start": {"segments": [], "live": []},
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "columns": ["kind", "address (O: free bytes)", "bytes", "stream"],
        "events": events,
    }
    text = json.dumps(history, separators=(",", ":"))
    # No time stamp in the archive: the same history is the same file.
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    kinds = "".join(event[0] for event in events)
    print(name, {kind: kinds.count(kind) for kind in "afAFO"}, "retries", history["retries"])


def main() -> None:
    match sys.argv[1:]:
        case ["--here", name]:
            record(name)
        case names:
            for name in names or SCENARIOS:
                scenario = SCENARIOS[name]
                knobs = {
                    "RIG_BYTES": str(scenario.device_mib * MIB),
                    "RIG_CTX_BYTES": str(CONTEXT_BYTES),
                    "PYTORCH_CUDA_ALLOC_CONF": scenario.conf,
                }
                subprocess.run([sys.executable, __file__, "--here", name], env={**os.environ, **knobs}, check=True)


if __name__ == "__main__":
    main()
