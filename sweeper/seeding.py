"""What is predicted of a sweep: its first guess, and beside each batch that a GPU measures, what was to be expected.

Both come from one law, traced at small batches when it is first needed.  Where the step has none, there is no first
guess, and each batch that was measured is traced by itself: a second or so beside a trial that takes longer.  Traces
are not kept in the journal: a sweep that is resumed takes them again, which is the same computation, on the card that
the journal names.
"""

import dataclasses
from functools import cached_property
from pathlib import Path

from sweeper import calibration, cards
from sweeper.allocator_conf import AllocatorConf
from sweeper.calibrating import card_at_hand
from sweeper.calibration import Calibration
from sweeper.cards import Card
from sweeper.errors import Untraceable, UsageError
from sweeper.predicting import EachSize, StepTracer, as_reserved_on, job_traces, room_on
from sweeper.prediction import Prediction, Replays, Room, predict_host, predict_within
from sweeper.record import PredictedTrial, Record
from sweeper.runner import Runner
from sweeper.trace import AffineTrace
from sweeper.trial import DeviceReport, Fit, Outcome, OutOfMemory

__all__ = ["Seed", "card_of", "room_of"]


def card_of(device: DeviceReport, *, asked: Card | None, kept: Calibration | None) -> Card:
    """The card that stands for ``device`` in a simulation: the one ``asked`` for, or what is here, as calibrated."""
    if asked is not None:
        return asked
    if device.simulated:
        return cards.card(device.device.partition(":")[2])
    if device.device == "cpu":
        return cards.card(f"{max(device.total_bytes, 1)}B")
    here = card_at_hand(device)
    return here if kept is None else calibration.apply(kept, here)


class Seed:
    """The prediction of the sweep in ``record``, whose device is known and stands for ``card``."""

    def __init__(self, record: Record, card: Card, runner: Runner, folder: Path) -> None:
        assert record.device is not None
        self._header, self._device, self._card = record.header, record.device, card
        self._runner, self._folder = runner, folder

    def prediction(self) -> Prediction | None:
        """The first guess; None where the step cannot be traced or is not affine, so that the sweep takes longer."""
        settings, law = self._header.settings, self._traces
        if not isinstance(law, AffineTrace):
            return None
        if self._device.device == "cpu":
            budget = self._device.capacity_bytes
            return predict_host(law, budget_bytes=budget, cap=settings.cap, floor=settings.floor)
        if self._replays is None:
            return None
        found = predict_within(self._replays, self._room, cap=settings.cap, floor=settings.floor)
        return as_reserved_on(self._card, found)

    def beside(self, size: int, outcome: Outcome) -> PredictedTrial | None:
        """What was to be expected of a trial at ``size`` that ended so; None where nothing is predicted."""
        if not isinstance(outcome, OutOfMemory | Fit):
            return None
        try:
            return None if self._replays is None else self._expected(self._replays, size, outcome)
        except Untraceable:  # at this size alone
            return None

    def _expected(self, replays: Replays, size: int, outcome: Fit | OutOfMemory) -> PredictedTrial:
        uncapped, fits = replays.uncapped(size), replays.fits(size, self._room)
        ran = replays.within(size, self._room) if fits else uncapped
        least = None
        if not fits or isinstance(outcome, OutOfMemory):
            least = calibration.reserved_bytes(self._card, replays.least_capacity_bytes(size))
        return PredictedTrial(
            fits=fits,
            peak_allocated_bytes=ran.peak_allocated_bytes,
            peak_reserved_bytes=calibration.reserved_bytes(
                self._card, ran.peak_reserved_bytes, at_least=ran.peak_allocated_bytes
            ),
            least_capacity_bytes=least,
        )

    @cached_property
    def _traces(self) -> AffineTrace | EachSize | None:
        spec = dataclasses.replace(
            self._header.spec, device=f"sim:{self._card.name}", memory_limit_bytes=None, card=self._card
        )
        try:
            return job_traces(StepTracer(self._runner, self._folder), spec, self._card.kernels)
        except Untraceable:
            return None

    @cached_property
    def _replays(self) -> Replays | None:
        """None also where the allocator is told words that are not simulated."""
        try:
            conf = AllocatorConf.parse(self._device.allocator_conf or "")
        except UsageError:
            return None
        return None if self._traces is None else Replays(self._traces, conf)

    @property
    def _room(self) -> Room:
        return room_of(self._device, self._card, self._header.spec.memory_limit_bytes)


def room_of(device: DeviceReport, card: Card, limit_bytes: int | None) -> Room:
    """What a trial can have: what was free when the device was described, less what kernels take after that.

    Under a limit that is less than what was free, what was free is not known, and nothing is taken off.
    """
    capacity = device.capacity_bytes
    if not device.simulated and card.calibrated and capacity != limit_bytes:
        capacity -= card.calibrated.loaded_bytes
    return room_on(card, capacity, limit_bytes)
