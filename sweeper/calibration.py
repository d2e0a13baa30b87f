"""What was measured of one card, and what it changes in the simulation of it: pure, and the same on both sides.

Two numbers of a calibration are used.  What a process loses outside the allocator (context, kernels, what libraries
keep for themselves) takes the place of the catalogue's context, so it is capacity that the simulated allocator does
not have.  And the *reserved offset*: what the allocator reserved on the card beyond what was simulated, in every job
that was tried.  A part that all jobs share belongs to the card and its libraries (a larger cuBLAS workspace, say); the
rest depends on the job, is not kept, and stays as the error of a prediction.  A job that would reserve R in the
simulation reserves R + offset on the card, so the simulated allocator is given the capacity less the offset, and what
it reserved is reported with the offset added.  ``allocator_bytes`` and ``reserved_bytes`` are these two sentences;
the simulated device in the worker and the forecast in the driver both go through them.

What this does not know: how what lies outside grows with the kernels that other models load.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.cards import Calibrated, Card, name_for
from sweeper.trial import Precision
from sweeper.units import format_bytes

__all__ = [
    "Calibration",
    "CalibrationJob",
    "allocator_bytes",
    "apply",
    "offset_bytes",
    "reserved_bytes",
    "sentence",
    "shared_offset",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationJob:
    """One small job, measured on the card and simulated for it.  Peaks in bytes over the whole trial."""

    model: str
    precision: Precision
    batch_size: int
    measured_allocated_bytes: int
    measured_reserved_bytes: int
    simulated_allocated_bytes: int
    simulated_reserved_bytes: int
    outside_bytes: int  # of the card, not the allocator's, when it had run; of other processes nothing, where known
    cublas_workspace_bytes: int

    @property
    def difference_bytes(self) -> int:
        """Reserved on the card beyond what is simulated."""
        return self.measured_reserved_bytes - self.simulated_reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What is kept of one card.  ``name`` is the catalogue's, or made of its label.  Bytes.

    ``context_bytes`` is what a process takes before its first tensor.  ``others_bytes`` were other processes' and are
    counted nowhere; where the driver did not tell them apart it is None, and whatever they held counts as outside.
    """

    name: str
    label: str
    total_bytes: int
    compute_capability: str
    multiprocessors: int | None
    context_bytes: int
    others_bytes: int | None
    jobs: tuple[CalibrationJob, ...]
    date: str  # ISO 8601, UTC
    sweeper: str
    torch: str
    cuda: str | None
    driver: str | None

    @property
    def outside_bytes(self) -> int:
        """The most that lay outside the allocator after a job."""
        return max((job.outside_bytes for job in self.jobs), default=self.context_bytes)

    @property
    def reserved_offset_bytes(self) -> int:
        """What every job reserved beyond what was simulated."""
        return shared_offset([job.difference_bytes for job in self.jobs])

    @property
    def loaded_bytes(self) -> int:
        """What came to lie outside between the first tensor and the last step: kernels and library handles."""
        return max(0, self.outside_bytes - self.context_bytes)


def shared_offset(differences: Sequence[int]) -> int:
    """The part that all ``differences`` have in common: the least of those above 0, or below; 0 where signs differ."""
    if not differences:
        return 0
    return max(0, min(differences)) + min(0, max(differences))


def apply(calibration: Calibration, catalogued: Card | None) -> Card:
    """The card to simulate: ``catalogued`` with what was measured, or one of the calibration alone."""
    when = f"calibrated on {calibration.date}"
    unknown = "not in the catalogue"
    return Card(
        name=catalogued.name if catalogued else name_for(calibration.label, calibration.total_bytes),
        label=catalogued.label if catalogued else calibration.label,
        total_bytes=calibration.total_bytes,
        total_source=f"as the driver reported it here, {when}",
        compute_capability=calibration.compute_capability,
        architecture=catalogued.architecture if catalogued else unknown,
        multiprocessors=calibration.multiprocessors,
        context_bytes=calibration.outside_bytes,
        context_source=f"measured here, {when}",
        memory_bandwidth_bytes_per_s=catalogued.memory_bandwidth_bytes_per_s if catalogued else None,
        vendor=catalogued.vendor if catalogued else unknown,
        calibrated=Calibrated(
            date=calibration.date,
            torch=calibration.torch,
            driver=calibration.driver,
            reserved_offset_bytes=calibration.reserved_offset_bytes,
            loaded_bytes=calibration.loaded_bytes,
        ),
    )


def offset_bytes(card: Card) -> int:
    """What ``card`` reserves beyond what is simulated; 0 where that was not measured."""
    return card.calibrated.reserved_offset_bytes if card.calibrated else 0


def allocator_bytes(card: Card, size: int) -> int:
    """Of ``size`` bytes that the allocator on ``card`` can have, those that the simulated one can."""
    return max(0, size - offset_bytes(card))


def reserved_bytes(card: Card, simulated_bytes: int, *, at_least: int = 0) -> int:
    """What ``card`` reserves where the simulation reserves ``simulated_bytes``; never less than what is allocated.

    A job that reserves nothing at all has not begun, and nothing is added to it.
    """
    if simulated_bytes == 0:
        return 0
    return max(simulated_bytes + offset_bytes(card), at_least)


def sentence(card: Card) -> str | None:
    """``calibrated on 2026-11-30, torch 2.14.1: 312.00 MiB outside the allocator``; None for what is not."""
    if card.calibrated is None:
        return None
    text = (
        f"calibrated on {card.calibrated.date}, torch {card.calibrated.torch}: "
        f"{format_bytes(card.context_bytes)} outside the allocator"
    )
    if offset := card.calibrated.reserved_offset_bytes:
        text += f", {format_bytes(abs(offset))} {'more' if offset > 0 else 'less'} reserved than predicted"
    return text
