"""What the step holds: each allocation with its label, told to a caching allocator as it happens, and kept as a log."""

import torch

from sweeper.allocator import AllocatorOutOfMemory, CachingAllocator
from sweeper.trace import Label, Mark, Trace, replayed_breakdowns
from sweeper.trial import Breakdown, Kind, Phase

__all__ = ["Ledger", "SimulatedOutOfMemory"]

LabelKey = tuple[str, str, Phase, Kind]


class SimulatedOutOfMemory(torch.OutOfMemoryError):
    """The simulated allocator refused; worded as torch's own, which it is a kind of, with where it happened.

    Sizes are bytes.  ``requested_bytes`` is what the operator asked for, ``free_bytes`` what the card had left.
    """

    def __init__(self, refusal: AllocatorOutOfMemory, label: Label) -> None:
        where = f"operator {label.operator}, module {label.module or '(the model)'}, {label.phase}"
        super().__init__(f"{refusal} Simulated; {where}.")
        self.requested_bytes = refusal.requested_bytes
        self.free_bytes = refusal.free_bytes
        self.allocated_bytes = refusal.allocated_bytes
        self.reserved_bytes = refusal.reserved_bytes
        self.label = label


class Ledger:
    """Numbers allocations from 0; ``allocate`` returns the number that ``free`` takes."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.allocator = allocator
        self.optimizing: type[torch.optim.Optimizer] | None = None  # of what kind the optimizer is that steps just now
        self._events: list[int] = []
        self._sizes: list[int] = []
        self._held: list[int] = []  # what each took of the allocator's count, after rounding
        self._addresses: list[int] = []
        self._labels_of: list[int] = []
        self._labels: dict[LabelKey, int] = {}
        self._keys: list[LabelKey] = []  # the same, by number
        self._marks: list[Mark] = []
        self._empties: list[int] = []

    def allocate(self, size: int, operator: str, module: str, phase: Phase, kind: Kind) -> int:
        """Take ``size`` bytes, at least 1.  Raises ``SimulatedOutOfMemory``, and then nothing has changed."""
        allocator = self.allocator
        before = allocator.allocated_bytes
        try:
            address = allocator.allocate(size)
        except AllocatorOutOfMemory as refusal:
            raise SimulatedOutOfMemory(refusal, Label(operator, module, phase, kind)) from None
        number = len(self._sizes)
        self._events.append(number)
        self._sizes.append(size)
        self._held.append(allocator.allocated_bytes - before)
        self._addresses.append(address)
        self._labels_of.append(self._label((operator, module, phase, kind)))
        return number

    def free(self, number: int) -> None:
        _, _, phase, kind = self._keys[self._labels_of[number]]
        if (
            self._marks
            and self._marks[-1].phase == phase
            and (phase == "step" or (self.optimizing is not None and kind == "optimizer"))
        ):
            # Made and gone within one optimizer step: scratch of its arithmetic, not state.
            self.relabel(number, "workspace")
        self._events.append(~number)
        self.allocator.free(self._addresses[number])

    def empty_cache(self) -> None:
        """Have the allocator give back what is wholly free, as the next event finds it."""
        self._empties.append(len(self._events))
        self.allocator.empty_cache()

    def relabel(self, number: int, kind: Kind) -> None:
        """Say what an allocation turned out to hold: a gradient is known only when autograd stores it."""
        operator, module, phase, before = self._keys[self._labels_of[number]]
        if before != kind:
            self._labels_of[number] = self._label((operator, module, phase, kind))

    def mark(self, phase: Phase, step: int) -> None:
        self._marks.append(Mark(len(self._events), phase, step))

    def breakdowns(self) -> tuple[Breakdown, Breakdown]:
        """Return (bytes by kind at the peak, the most each kind held), over everything since the beginning."""
        kinds = [key[3] for key in self._keys]
        at_peak, holdings, _ = replayed_breakdowns(
            self._events, self._held, [kinds[label] for label in self._labels_of]
        )
        return at_peak, holdings

    def trace(self, batch_size: int) -> Trace:
        return Trace(
            batch_size=batch_size,
            events=tuple(self._events),
            sizes=tuple(self._sizes),
            labels=tuple(Label(*key) for key in self._keys),
            labels_of=tuple(self._labels_of),
            marks=tuple(self._marks),
            empties=tuple(self._empties),
        )

    def _label(self, key: LabelKey) -> int:
        number = self._labels.get(key)
        if number is None:
            number = self._labels[key] = len(self._keys)
            self._keys.append(key)
        return number
