"""A runner without a process: answers by a script, and remembers what it was asked."""

from collections.abc import Callable
from pathlib import Path

from sweeper.trial import Describe, DeviceReport, Fit, Outcome, Request, Response, TrialSpec
from sweeper.units import GIB, MIB
from tests.builders import a_broken, a_device, an_oom

__all__ = ["CAPACITY", "ScriptedRunner", "threshold_at"]

CAPACITY = 8 * GIB


def threshold_at(threshold: int, *, capacity: int = CAPACITY) -> Callable[[TrialSpec], Outcome]:
    """Fits up to ``threshold`` when the whole capacity is there, and in proportion under a limit."""
    slope = (capacity - 256 * MIB) // threshold if threshold else capacity

    def answer(spec: TrialSpec) -> Outcome:
        limit = min(capacity, spec.memory_limit_bytes or capacity)
        need = 256 * MIB + slope * spec.batch_size
        if need > limit:
            return an_oom(capacity_bytes=limit, peak_allocated_bytes=limit, peak_reserved_bytes=limit)
        return Fit(peak_allocated_bytes=need, peak_reserved_bytes=need, capacity_bytes=limit, steps=())

    return answer


class ScriptedRunner:
    """``script`` answers each trial; a trace is never to be had, so there is no prediction."""

    def __init__(self, script: Callable[[TrialSpec], Outcome], *, device: DeviceReport | None = None) -> None:
        self._script = script
        self._device = device or a_device(device="cuda", simulated=False, capacity_bytes=CAPACITY)
        self.sizes: list[int] = []

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        match request:
            case Describe():
                return self._device
            case TrialSpec():
                self.sizes.append(request.batch_size)
                return self._script(request)
            case _:
                return a_broken()

    def close(self) -> None:
        """Nothing runs."""
