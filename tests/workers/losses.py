"""A small model whose loss is no number from some step on.  Named as ``tests/workers/losses.py:turning``.

Loaded by the worker only; the tests never import it.
"""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Turning:
    """The mean square of the outputs; the ``at``-th loss and all later ones are that many times ``value``."""

    value: float
    at: int
    losses: int = 0

    def __post_init__(self) -> None:
        self.model = nn.Linear(16, 16)

    def make_batch(self, size: int) -> tuple[torch.Tensor, None]:
        return torch.ones(size, 16), None

    def loss(self, outputs: torch.Tensor, _targets: None) -> torch.Tensor:
        self.losses += 1
        return outputs.square().mean() * (self.value if self.losses >= self.at else 1.0)


def turning(value: str = "nan", at: int = 2) -> Turning:
    return Turning(float(value), at)
