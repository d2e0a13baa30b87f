"""The optimizers' and the gradient scaler's CUDA paths, on meta tensors.

On CUDA an optimizer that was not told otherwise takes the ``foreach`` path (``_default_to_fused_or_foreach``,
torch/optim/optimizer.py), whose transients are 4 bytes a parameter in Adam; on meta it would loop over the parameters
one by one.  The real optimizer runs, told to take the other path.  One that is told to be ``fused`` refuses tensors on
meta, though its kernels have meta versions; here it does not.

In a step of the user's own (phase ``train_step``) hooks of every optimizer tell the ledger when one steps.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.optim.optimizer as torch_optimizer

from sweeper.worker.tracing.ledger import Ledger

__all__ = ["SimulatedGradScaler", "stepping_as_on_cuda"]


@contextmanager
def stepping_as_on_cuda(ledger: Ledger | None = None) -> Iterator[None]:
    """While inside, an optimizer that leaves ``foreach`` and ``fused`` open steps with ``foreach``; ``fused`` works.

    ``ledger`` is told when an optimizer steps.
    """

    def begin(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        _choose_foreach(optimizer)
        if ledger is not None:
            ledger.optimizing = type(optimizer)

    def end(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if ledger is not None:
            ledger.optimizing = None

    hooks = [
        torch_optimizer.register_optimizer_step_pre_hook(begin),
        torch_optimizer.register_optimizer_step_post_hook(end),
    ]
    module: Any = torch_optimizer
    supported = module._get_fused_kernels_supported_devices
    module._get_fused_kernels_supported_devices = lambda: [*supported(), "meta"]
    try:
        yield
    finally:
        module._get_fused_kernels_supported_devices = supported
        for hook in hooks:
            hook.remove()


def _choose_foreach(optimizer: torch.optim.Optimizer) -> None:
    if isinstance(optimizer, torch.optim.Adafactor):  # loops unless it is told otherwise: _adafactor.py
        return
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = not group.get("differentiable", False)


class SimulatedGradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` whose check for infinities always passes: there are no values to look at.

    Everything else is torch's own code, so its scalars are allocated as on CUDA.
    """

    def __init__(self, *, enabled: bool) -> None:
        super().__init__("meta", enabled=enabled)

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        result: float | None = optimizer.step(*args, **kwargs)
        return result
