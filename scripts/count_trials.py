"""Count the trials to a proven boundary, over thresholds drawn at random, and beside what other tools do.

Usage: python scripts/count_trials.py [--json]

No model is run: a threshold is drawn, a law of the peak is drawn, and the capacity is set so that exactly the threshold
fits.  Four laws: ``affine`` (what tracing finds of allocated bytes), ``segments`` (affine, rounded up to 20 MiB, as
reserved bytes are for blocks of 1 to 10 MiB: kLargeBuffer in c10/cuda/CUDACachingAllocator.cpp), ``steps`` (affine,
rounded down to steps of 1.5 %, harsher than what real curves show), and ``fragmented`` (affine allocated peaks, but the
boundary comes where they reach a share of the capacity drawn from 88 to 99 %: a line through them cannot know it, and
a prediction that replays the allocator can).  Thresholds and laws are the same for every row, drawn with a fixed seed,
so the table is the same on every machine.

A trial says fits or not, one bit.  So a prediction that is off by up to d sizes either way cannot be mended in fewer
than log2(2 d + 1) trials unless the peaks tell more: that mean is printed beside, as ``least``.  They do tell more when
the prediction also says how full the device is at its boundary (rows ``and peak``, its own error 0.5 % of the bytes).
"""

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sweeper.search import Search

MIB = 1 << 20
CAP = 4096
THRESHOLDS = 50
SEED = 2024

Peak = Callable[[int], int]

# Read from the tools' sources and run without a GPU: true maximum 437, cap 512.  (tool, version, returns, trials)
PEERS = (
    ("Lightning power", "2.6.6", "256", 9),
    ("Lightning binsearch", "2.6.6", "415", 17),
    ("Accelerate, from 512", "1.15.0", "414", 3),
    ("toma and Composer, from 512", "1.1.0, 0.32.1", "256", 2),
    ("timm, from 512", "1.0.29", "384", 2),
    ("Ultralytics AutoBatch", "8.4.190", "a guess, not run", 7),
    ("DeepSpeed autotuner", "0.19.8", "437", 12),
    ("batch-finder", "0.6.0", "437", 10),
    ("autovram", "0.1.0", "437", 18),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Trials over all thresholds; ``boundary`` is beyond the curve's points, ``total`` is with them."""

    peaks: str
    prediction: str
    boundary_mean: float
    boundary_worst: int
    total_mean: float
    total_worst: int
    least_mean: float | None = None  # bits of what the prediction leaves open, where the peaks do not tell the rest


@dataclass(frozen=True, slots=True)
class Case:
    """A hidden threshold, and the line its peaks lie on."""

    threshold: int
    fixed_bytes: int
    slope_bytes: int
    reached: float = 1.0  # the share of the capacity at which fragmented memory runs out

    def capacity_bytes(self, law: str) -> int:
        most = self.line(self.threshold) + self.slope_bytes // 2
        return int(most / self.reached) if law == "fragmented" else most

    def line(self, size: int) -> int:
        return self.fixed_bytes + self.slope_bytes * size

    def segments(self, size: int) -> int:
        return -(-self.line(size) // (20 * MIB)) * 20 * MIB

    def steps(self, size: int) -> int:
        return int(1.015 ** math.floor(math.log(self.line(size), 1.015)))

    @property
    def peaks(self) -> dict[str, Peak]:
        return {"affine": self.line, "segments": self.segments, "steps": self.steps, "fragmented": self.line}


def draw(count: int) -> list[Case]:
    """``count`` thresholds below the cap, uniform, with the fixed part and the slope of small to middling models."""
    rng, shares = random.Random(SEED), random.Random(SEED + 1)
    return [
        Case(
            rng.randrange(1, CAP),
            rng.randrange(100, 600) * MIB,
            rng.randrange(MIB, 30 * MIB),
            reached=shares.uniform(0.88, 0.99),
        )
        for _ in range(count)
    ]


def predictions(case: Case, rng: random.Random) -> dict[str, tuple[int | None, int | None]]:
    """(the predicted size, the predicted peak in bytes at it) by name; the peak is near what really comes then."""
    near = round(case.threshold * rng.uniform(0.97, 1.03))
    far = round(case.threshold * rng.choice((0.8, 1.2)))
    full = case.line(case.threshold) * rng.uniform(0.995, 1.005)
    return {
        "exact": (case.threshold, None),
        "within 3 %": (near, None),
        "3 %, and peak": (near, int(full)),
        "20 % wrong": (far, None),
        "20 %, and peak": (far, int(full)),
        "none": (None, None),
    }


def count_trials(
    case: Case, law: str, *, cap: int, predicted: int | None, predicted_peak_bytes: int | None = None
) -> dict[str, int]:
    """Trials by purpose, run to the end.  Raises ``RuntimeError`` when the search does not find the threshold."""
    search = Search(
        cap=cap,
        capacity_bytes=case.capacity_bytes(law),
        predicted_max=predicted,
        predicted_peak_bytes=predicted_peak_bytes,
    )
    counts, peak = {"curve": 0, "boundary": 0, "confirm": 0}, case.peaks[law]
    while (size := search.next_size()) is not None:
        counts[search.purpose] += 1
        fits = size <= case.threshold
        search = search.after(size, fits, peak(size) if fits else None)
    if search.answer != case.threshold or not search.proven:
        raise RuntimeError(f"threshold {case.threshold}: the search answered {search.answer}, proven {search.proven}")
    return counts


def least_bits(threshold: int, prediction: str) -> float | None:
    """Trials that no search can do without when peaks say nothing: 2 for the pair, or all that is left open."""
    match prediction:
        case "exact":
            return 2.0
        case "within 3 %":
            return max(2.0, math.log2(2 * int(0.03 * threshold) + 1))
    return None


def table() -> Iterator[Row]:
    cases = draw(THRESHOLDS)
    for law in cases[0].peaks:
        rng = random.Random(SEED)
        guesses = [predictions(case, rng) for case in cases]
        for prediction in guesses[0]:
            counts = [
                count_trials(
                    case, law, cap=CAP, predicted=guess[prediction][0], predicted_peak_bytes=guess[prediction][1]
                )
                for case, guess in zip(cases, guesses, strict=True)
            ]
            boundary = [count["boundary"] for count in counts]
            total = [count["curve"] + count["boundary"] for count in counts]
            least = [least_bits(case.threshold, prediction) for case in cases] if law == "fragmented" else []
            yield Row(
                peaks=law,
                prediction=prediction,
                boundary_mean=statistics.fmean(boundary),
                boundary_worst=max(boundary),
                total_mean=statistics.fmean(total),
                total_worst=max(total),
                least_mean=statistics.fmean(bits for bits in least if bits) if any(least) else None,
            )


def beside_peers() -> Iterator[tuple[str, str, int]]:
    """(prediction, answer, trials) for true maximum 437 and cap 512, peaks in segments."""
    case = Case(437, 300 * MIB, 20 * MIB)
    for prediction, guess in (("437", 437), ("424, 3 % low", 424), ("524, 20 % high", 524), ("none", None)):
        counts = count_trials(case, "segments", cap=512, predicted=guess)
        yield prediction, "437", counts["curve"] + counts["boundary"]


def as_text(rows: list[Row], ours: list[tuple[str, str, int]]) -> str:
    bound = Search(cap=CAP).trial_bound
    lines = [
        "python scripts/count_trials.py",
        "",
        f"Trials to a proven boundary: {THRESHOLDS} thresholds drawn at random below {CAP} (seed {SEED}).",
        f"'beyond' leaves out the curve's points, at most 6; its bound, 2 + log2({CAP}), is {bound}.",
        "",
        "law         prediction     beyond: mean  least  worst  total: mean  worst",
    ]
    lines += [
        f"{row.peaks:<12}{row.prediction:<15}{row.boundary_mean:>12.2f}"
        f"{'' if row.least_mean is None else f'{row.least_mean:.2f}':>7}{row.boundary_worst:>7}"
        f"{row.total_mean:>13.2f}{row.total_worst:>7}"
        for row in rows
    ]
    lines += ["", "True maximum 437, cap 512:", f"{'':<42}{'returns':<18}{'trials':>6}"]
    lines += [f"{f'{tool} {version}':<42}{returns:<18}{trials:>6}" for tool, version, returns, trials in PEERS]
    lines += [
        f"{f'sweeper, prediction {prediction}':<42}{answer:<18}{trials:>6}" for prediction, answer, trials in ours
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    rows, ours = list(table()), list(beside_peers())
    if arguments.json:
        peers = [{"tool": t, "version": v, "returns": r, "trials": n} for t, v, r, n in PEERS]
        mine = [{"prediction": p, "returns": a, "trials": n} for p, a, n in ours]
        print(
            json.dumps({"schema": 1, "rows": [asdict(row) for row in rows], "peers": peers, "sweeper": mine}, indent=1)
        )
    else:
        print(as_text(rows, ours))


if __name__ == "__main__":
    main()
