"""Networks that a prediction has trouble with: one that is not affine in the batch, and one that reads a value.

Named as ``tests/workers/unpredictable.py:jumps``.  Loaded by the worker only; the tests never import it.
"""

import torch
import torch.nn.functional as F
from torch import nn

from tests.workers.networks import Linears


class Jumps(Linears):
    """Pads its batch to a multiple of 48, and normalizes over it, which a batch of one sample cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        return super().forward(F.pad(x, (0, 0, 0, -len(x) % 48)))


def jumps() -> nn.Module:
    return Jumps()


class ReadsAValue(Linears):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:
            x = x + 1
        return super().forward(x)


def reads_a_value() -> nn.Module:
    """Looks at its input on the host, which a step on meta tensors has not."""
    return ReadsAValue()


class KeepsItsRows(Linears):
    """Asks its own positions, which are known, which rows to keep: every second one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = super().forward(x[torch.arange(len(x), device=x.device) % 2 == 0])
        if len(kept) != (len(x) + 1) // 2:
            raise AssertionError(len(kept))
        return kept


def keeps_its_rows() -> nn.Module:
    return KeepsItsRows()


class DropsRows(Linears):
    """Keeps the rows whose sum is positive, which only arithmetic tells."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[x.sum(1) > 0])


def drops_rows() -> nn.Module:
    return DropsRows()
