"""Your own model in a sweep, in the two forms that sweeper reads.

The short form is a module that can make its own inputs.  Memory is decided by shapes, so random inputs will do, and
the loss is the mean of the outputs::

    sweep --model docs/examples/my_model.py:Classifier --device cpu --max-batch 256

The long form is any object with ``model``, ``make_batch`` and ``loss``: for a loss of your own, for several inputs,
or to sweep with the batches you really train on.  Its arguments can be set from the command line::

    sweep --model docs/examples/my_model.py:denoising --model-arg width=64 --device cpu --max-batch 256

Neither imports sweeper.  Leave ``--device cpu`` out to use the GPU, or a simulated one where there is none.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Classifier(nn.Module):
    """The short form: an ``nn.Module`` with ``example_inputs(batch)``."""

    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return logits

    def example_inputs(self, batch: int) -> Tensor:
        # No device: sweeper decides where tensors are made.
        return torch.randn(batch, 1, 28, 28)


@dataclass
class Denoising:
    """The long form: a model, how a batch of any size is made, and the loss."""

    model: nn.Module
    noise: float = 0.1

    def make_batch(self, batch: int) -> tuple[Tensor, Tensor]:
        clean = torch.rand(batch, 3, 64, 64)
        return clean + self.noise * torch.randn(batch, 3, 64, 64), clean

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)


def denoising(width: int = 32, noise: float = 0.1) -> Denoising:
    """The factory: its keywords are what ``--model-arg`` sets."""
    model = nn.Sequential(
        nn.Conv2d(3, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 3, kernel_size=3, padding=1),
    )
    return Denoising(model=model, noise=noise)
