"""torchao's 8-bit optimizer where its arithmetic is not compiled: on the CPU, and on meta tensors.

``_AdamBase.step`` of torchao 0.18 (torchao/optim/adam.py) makes the state of a parameter and then calls
``single_param_adam`` through ``torch.compile``.  What inductor of PyTorch 2.14 makes of that for CUDA is one kernel a
parameter, which reads and writes state and parameter in place and has no buffer of its own; so says the program that it
generates, for matrices and vectors, of fp32 and of bfloat16.  So on a simulated card the arithmetic is left out, and
what remains is torchao's own: the state, made in the first step.

Not known: what a later inductor will make of it.
"""

import importlib
from typing import Any

import torch

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
                with torch.compiler.set_stance("force_eager"):
                    return super().step(closure)
            finally:
                module.single_param_adam = compiled

    return Uncompiled


def _nothing(*_arguments: Any) -> None:
    """Changes values, and there are none."""
