"""Workloads with an optimizer or a training step of their own: ``tests/workers/own_loops.py:whole``."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 256
PARAMETERS = 4 * (WIDTH * WIDTH + WIDTH)


def _parts() -> dict[str, Any]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return {"model": nn.Sequential(*layers), "make_batch": lambda n: (torch.rand(n, WIDTH), torch.rand(n, WIDTH))}


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def _train_step(model: nn.Module, batch: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = F.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss


def plain() -> Any:
    return SimpleNamespace(**_parts(), loss=F.mse_loss)


def optimizer_only() -> Any:
    return SimpleNamespace(**_parts(), loss=F.mse_loss, optimizer=_adam)


def step_only() -> Any:
    return SimpleNamespace(**_parts(), train_step=_train_step)


def whole() -> Any:
    return SimpleNamespace(**_parts(), optimizer=_adam, train_step=_train_step)


def no_optimizer() -> Any:
    return SimpleNamespace(**_parts(), loss=F.mse_loss, optimizer=lambda parameters: list(parameters))


def no_loss() -> Any:
    return SimpleNamespace(**_parts(), train_step=lambda model, batch, optimizer: "fine")


def not_callable() -> Any:
    return SimpleNamespace(**_parts(), loss=F.mse_loss, optimizer="adam")
