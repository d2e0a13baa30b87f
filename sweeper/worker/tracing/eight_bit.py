"""torchao's 8-bit optimizer where its arithmetic is not compiled: on the CPU, and on meta tensors.

``_AdamBase.step`` of torchao 0.18 (torchao/optim/adam.py) makes the state of a parameter and then calls
``single_param_adam`` through ``torch.compile``.  What inductor of PyTorch 2.14 makes of that for CUDA is one kernel a
parameter, which reads and writes state and parameter in place and has no buffer of its own; so says the program that it
generates, for matrices and vectors, of fp32 and of bfloat16.  So on a simulated card the arithmetic is left out, and
what remains is torchao's own: the state, made in the first step.  Each has a table of 256 values, which is written in
Python and copied; on meta tensors no operator shows that, so it is made by one that does (``_Tables``).

Not known: what a later inductor will make of it.
"""

import importlib
from contextlib import nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["uncompiled"]


def uncompiled(kind: type[torch.optim.Optimizer], *, arithmetic: bool) -> type[torch.optim.Optimizer]:
    """``kind``, one of torchao's, stepping operator by operator; without ``arithmetic`` it only makes its state."""

    class Uncompiled(kind):  # type: ignore[misc, valid-type]
        def step(self, closure: Any = None) -> Any:
            module: Any = importlib.import_module("torchao.optim.adam")
            compiled = module.single_param_adam
            if not arithmetic:
                module.single_param_adam = _nothing
            try:
                with torch.compiler.set_stance("force_eager"), nullcontext() if arithmetic else _Tables():
                    return super().step(closure)
            finally:
                module.single_param_adam = compiled

    return Uncompiled


class _Tables(TorchFunctionMode):
    """``torch.tensor`` of numbers takes room on a simulated card."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_card = torch.device(kwargs.get("device") or "cpu").type == "meta"
        if func is torch.tensor and on_card and isinstance(args[0], list | tuple):
            return torch.empty(len(args[0]), **kwargs)
        return func(*args, **kwargs)


def _nothing(*_arguments: Any) -> None:
    """Changes values, and there are none."""
