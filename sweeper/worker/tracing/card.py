"""What a rule may ask of the card while its operator runs.  The tracer answers; the rules need not know it."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

__all__ = ["Card", "Kernel"]


class Card(Protocol):
    """The card's memory, as the kernel of one operator sees it.  Sizes are bytes."""

    def announce_result(self, result: Any, func: OpOverload) -> None:
        """Count ``result`` now, before what its kernel takes next."""

    def scratch(self, size: int, operator: str) -> Callable[[], None]:
        """Take ``size`` bytes that no tensor stands for; call what is returned to give them back."""

    def keep(self, size: int, operator: str) -> int:
        """Take ``size`` bytes that no tensor stands for and nobody gives back; returns their number."""

    def empty_cache(self) -> None:
        """Have the allocator give back what is wholly free."""

    def number_only_scales(self) -> bool:
        """Does a number that is read now, of a tensor, change nothing but other numbers?"""

    def stores_gradient(self) -> bool:
        """Is autograd, just now, keeping a gradient as some parameter's ``.grad``?"""

    def mark_gradient(self, gradient: torch.Tensor) -> None:
        """Say that ``gradient``, counted under another kind, is kept as a parameter's ``.grad``."""


# A rule: the card, the operator and its arguments, to the operator's results.
Kernel = Callable[[Card, OpOverload, tuple[Any, ...], dict[str, Any]], Any]
