"""Networks whose memory is known or grows fast, and two that misbehave on a GPU.

Named as ``tests/workers/networks.py:wide``.  Loaded by the worker only; the tests never import it.
"""

import os
import signal
from pathlib import Path

import torch
from torch import nn


class Linears(nn.Module):
    """Four layers of 1024 x 1024: 4 x (1024 x 1024 + 1024) parameters, and no size that an allocator rounds up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out

    def example_inputs(self, batch: int) -> torch.Tensor:
        return torch.zeros(batch, 1024)


def linears() -> nn.Module:
    return Linears()


class Wide(nn.Module):
    """Some 2.7 MiB of activations a sample, from an input of 12 KiB: trials near the limit are quick."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(3, 64, 3, padding=1), *(nn.Conv2d(64, 64, 3, padding=1) for _ in range(7))]
        self.body = nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.ReLU())))
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.misbehave()
        logits: torch.Tensor = self.head(self.body(images).mean((2, 3)))
        return logits

    def misbehave(self) -> None:
        """Nothing: this one behaves."""

    def example_inputs(self, batch: int) -> torch.Tensor:
        return torch.zeros(batch, 3, 32, 32)


def wide() -> nn.Module:
    return Wide()


class _EndsItsHost(Wide):
    def misbehave(self) -> None:
        folder = Path(os.readlink("/proc/self/fd/1")).parent  # noqa: PTH115
        if folder.name.startswith("0002-"):
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()


def ends_its_host() -> nn.Module:
    """In the second trial of a sweep, kills the process that forked it."""
    return _EndsItsHost()


class _LeavesChildren(Wide):
    def misbehave(self) -> None:
        # They keep what this process holds on the card.  One stays in the trial's group, one has left it.
        for new_session in (False, True):
            if os.fork() == 0:
                if new_session:
                    os.setsid()
                while True:
                    signal.pause()


def leaves_children() -> nn.Module:
    """Forks two children in each forward and never waits for them; the tracer sees them too, on the CPU."""
    return _LeavesChildren()
