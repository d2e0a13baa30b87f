"""Measure the speeds that sweeper promises, and print them beside the most they may be.

    python scripts/bench.py                     the table
    python scripts/bench.py --save              and keep it in results/bench/

Medians of several runs on this machine as it is; a shared machine is noisy, which the spread shows.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAIN_JOB = ["--model", "resnet18", "--max-batch", "512", "--device", "sim:rtx4060"]


@dataclass(frozen=True)
class Row:
    """One promise: ``seconds`` of every run, and the most the median may be."""

    what: str
    most: float
    runs: tuple[float, ...]
    unit: str = "s"
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def __str__(self) -> str:
        scale, name = (1000, "ms") if self.unit == "s" and self.most < 1 else (1, self.unit)
        figures = f"{self.median * scale:9.1f} {name:<4} {self.most * scale:8.0f} {name:<4}"
        spread = f"{min(self.runs) * scale:.1f} to {max(self.runs) * scale:.1f}"
        verdict = "ok  " if self.median <= self.most else "OVER"
        return f"{verdict} {self.what:<58} {figures} {spread:>20}  {self.note}"


def timed(run: Callable[[], object], times: int) -> tuple[float, ...]:
    """Seconds of ``times`` runs, after one that is not counted."""
    run()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return tuple(found)


def python(*arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=ROOT, env=env or os.environ.copy()
    )


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def help_row() -> Row:
    return Row("sweep --help", 0.3, timed(lambda: python("-m", "sweeper", "--help"), 7))


def isolation_row() -> Row:
    from sweeper.runner import ForkRunner
    from sweeper.trial import Describe

    imports = timed(lambda: python("-c", "import torch, torchvision"), 3)
    with scratch() as folder, ForkRunner(timeout_s=60) as runner:
        empty = timed(lambda: runner.run(Describe(device="cpu"), folder / "empty"), 21)
    fresh = statistics.median(imports)
    ratio = f"1/{fresh / statistics.median(empty):.0f} of a fresh interpreter's {fresh:.2f} s (at most 1/50)"
    return Row("one trial's isolation, fork to result read", 0.06, empty, note=ratio)


def tracing_rows() -> Iterator[Row]:
    from sweeper.trace import AffineTrace, Trace
    from sweeper.trial import TrialSpec
    from sweeper.worker import trial

    spec = TrialSpec(model="resnet50", batch_size=4, device="sim:rtx4060", steps=2)

    def take(size: int) -> Trace:
        found = trial.trace(spec, size)
        assert isinstance(found, Trace), found
        return found

    yield Row("trace of resnet50, two steps, SGD", 0.5, timed(lambda: take(4), 5))
    yield Row("affine trace of it", 1.0, timed(lambda: AffineTrace.join(take(4), take(8)), 5))


def replay_row() -> Row:
    from sweeper.allocator import CachingAllocator
    from sweeper.trace import replay
    from sweeper.trial import TrialSpec
    from sweeper.worker import trial

    trace = trial.trace(TrialSpec(model="resnet101", batch_size=4, device="sim:rtx4060", steps=3), 4)
    events = len(trace.events)  # type: ignore[union-attr]
    runs = timed(lambda: replay(trace, CachingAllocator()), 15)  # type: ignore[arg-type]
    per_5000 = tuple(seconds * 5000 / events for seconds in runs)
    return Row("replay of a trace, for 5,000 events", 0.025, per_5000, note=f"resnet101, {events} events")


def main_job_rows() -> Iterator[Row]:
    peaks: list[float] = []
    code = (
        "import sys; sys.argv[0] = 'sweep'\n"
        "from sweeper.cli import main\n"
        "from sweeper.host_memory import status_bytes\n"
        "try: main()\n"
        "finally: print(status_bytes('VmHWM'), file=sys.stderr)\n"
    )

    def sweep() -> None:
        with scratch() as folder:
            done = python("-c", code, *MAIN_JOB, "--quiet", "--folder", str(folder / "run"))
            assert (folder / "run" / "memory.png").exists()
            peaks.append(float(done.stderr.splitlines()[-1]))

    yield Row("sweep --model resnet18 --max-batch 512, shell to plot", 15, timed(sweep, 5))
    yield Row("driver memory", 80, tuple(peak / 2**20 for peak in peaks), unit="MiB")


def trials_row() -> Row:
    rows = json.loads(python("scripts/count_trials.py", "--json").stdout)["rows"]
    (row,) = (row for row in rows if (row["peaks"], row["prediction"]) == ("affine", "within 3 %"))
    runs = (row["boundary_mean"], float(row["boundary_worst"]))
    return Row("trials beyond the curve, prediction within 3 %", 3, runs, unit="", note="affine peaks; mean and worst")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true", help="keep the table in results/bench/")
    options = parser.parse_args()
    lines = [f"{_machine()}, {date.today().isoformat()}", ""]
    lines.append(f"     {'what':<58} {'median':>14} {'at most':>13} {'spread':>20}")
    print("\n".join(lines), flush=True)
    for make in (
        lambda: [help_row()],
        lambda: [isolation_row()],
        tracing_rows,
        lambda: [replay_row()],
        main_job_rows,
        lambda: [trials_row()],
    ):
        for row in make():
            lines.append(str(row))
            print(row, flush=True)
    if options.save:
        target = ROOT / "results" / "bench"
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{date.today().isoformat()}.txt").write_text("\n".join(lines) + "\n")


def _machine() -> str:
    from importlib import metadata

    cpu = platform.machine()
    with contextlib.suppress(OSError):
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip()
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {metadata.version('torch')}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
