"""Comparisons for tests: four combinations, each a small sweep of the builders' world."""

from collections.abc import Mapping

from sweeper.comparison import Compared, Entry
from sweeper.record import Record, Settings
from sweeper.trial import Fit, OutOfMemory
from sweeper.units import MIB
from tests.builders import CAPACITY_BYTES, a_breakdown, a_device, a_measured_fit, a_record, a_spec, an_oom

__all__ = ["VARY", "a_compared", "a_run", "an_entry"]

VARY: Mapping[str, tuple[str, ...]] = {"precision": ("fp32", "amp-bf16"), "optimizer": ("sgd", "adamw")}
_SLOPE_MIB = {"fp32": 24, "amp-bf16": 12}
_FIXED_MIB = {"sgd": 240, "adamw": 480}


def a_run(*, per_sample: int, fixed: int, device: str = "sim:rtx4060", sizes: tuple[int, ...] = (8, 16, 32)) -> Record:
    """A proven sweep whose peaks lie exactly on ``fixed + per_sample * size`` MiB."""

    def fit(size: int) -> Fit:
        peak = (fixed + per_sample * size) * MIB
        timed = {} if device.startswith("sim:") else {"step_seconds": size / 100, "samples_per_second": 100.0}
        known = {"peak_allocated_bytes": peak, "peak_reserved_bytes": peak, "breakdown": a_breakdown(size)}
        return a_measured_fit(size, **{"step_seconds": None, "samples_per_second": None, **known, **timed})

    largest = (CAPACITY_BYTES // MIB - fixed) // per_sample
    oom: OutOfMemory = an_oom()
    return a_record(
        *((size, fit(size)) for size in (*sizes, largest)),
        (largest + 1, oom),
        spec=a_spec(device=device),
        settings=Settings(cap=4096, margin=0),
        device=a_device(device=device),
    )


def an_entry(record: Record, **choices: str) -> Entry:
    return Entry(choices=choices, folder="-".join(choices.values()), record=record)


def a_compared(device: str = "sim:rtx4060") -> Compared:
    """amp-bf16 halves the slope, adamw doubles what is fixed."""
    entries = tuple(
        an_entry(
            a_run(per_sample=_SLOPE_MIB[precision], fixed=_FIXED_MIB[optimizer], device=device),
            precision=precision,
            optimizer=optimizer,
        )
        for precision in VARY["precision"]
        for optimizer in VARY["optimizer"]
    )
    return Compared(vary=VARY, entries=entries)
