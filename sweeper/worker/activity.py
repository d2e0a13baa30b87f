"""How busy a card is while a trial steps: the driver asked every few hundredths of a second, by a thread of its own.

One reading is four calls of the driver's library, during which the interpreter's lock is free (ctypes gives it up);
between readings the thread sleeps.  What is left for a step to lose is the lock for some microseconds, twenty times a
second.  What one reading means is said at ``CardActivity``: utilisation is of the driver's own period, which can be
longer than all steps of a small trial.  How much a reading disturbs on a given driver is not known here.
"""

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from sweeper.trial import CardActivity

__all__ = ["Reading", "Sampler", "summary"]

# NVML renews utilisation every 1/6 s at the soonest (nvml.h, nvmlDeviceGetUtilizationRates) and power every 20 to
# 100 ms; asking more often tells the same again.
PERIOD_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One answer of the driver; None is what this card does not tell."""

    utilization_percent: float | None = None
    power_w: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None


class Sampler:
    """Reads from entering to leaving, at both ends at least; ``readings`` are whole once it is left.

    Where the first reading is None there is nobody to ask, and no other is tried.
    """

    def __init__(self, read: Callable[[], Reading | None], *, period_s: float = PERIOD_S) -> None:
        self.readings: list[Reading] = []
        self._read = read
        self._period_s = period_s
        self._left = threading.Event()
        # Not to be waited for when the trial ends in the middle of a reading that hangs.
        self._thread = threading.Thread(target=self._run, name="card activity", daemon=True)

    def __enter__(self) -> "Sampler":
        if self._take():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.readings:
            self._left.set()
            self._thread.join()
            self._take()

    def _run(self) -> None:
        while not self._left.wait(self._period_s):
            self._take()

    def _take(self) -> bool:
        reading = self._read()
        if reading is not None:
            self.readings.append(reading)
        return reading is not None


def summary(readings: list[Reading]) -> CardActivity | None:
    """Means and maxima of ``readings``; None where no reading told anything."""
    utilization = _told([r.utilization_percent for r in readings])
    power = _told([r.power_w for r in readings])
    clock = _told([r.clock_mhz for r in readings])
    temperature = _told([r.temperature_c for r in readings])
    if not (utilization or power or clock or temperature):
        return None
    return CardActivity(
        samples=len(readings),
        utilization_mean_percent=statistics.fmean(utilization) if utilization else None,
        utilization_max_percent=max(utilization, default=None),
        power_mean_w=statistics.fmean(power) if power else None,
        power_max_w=max(power, default=None),
        clock_mean_mhz=statistics.fmean(clock) if clock else None,
        temperature_max_c=max(temperature, default=None),
    )


def _told(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]
