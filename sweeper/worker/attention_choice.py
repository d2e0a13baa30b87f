"""``--attention``: the one kernel that ``scaled_dot_product_attention`` may choose, on every device.

PyTorch keeps the choice as flags of the process, so recomputation in backward obeys it too, and so does the simulation
of the choice (``tracing.selection``).  A model that computes its attention by hand, or has none, would take no notice;
so the first forward is watched, and one without such a call is refused.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from sweeper.errors import UsageError
from sweeper.trial import Attention, TrialSpec

__all__ = ["choosing", "watched"]

Forward = Callable[[nn.Module, Any], Any]

_BACKENDS: dict[Attention, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}

# What PyTorch says when none of the kernels allowed can run: select_sdp_backend, transformers/cuda/sdp_utils.cpp and
# transformers/sdp_utils_cpp.cpp, and scaled_dot_product_attention, transformers/attention.cpp; torch 2.14.
_NONE_CAN_RUN = ("No available kernel", "No viable backend")


def choosing(attention: Attention) -> AbstractContextManager[Any]:
    """While inside, only that kernel may be chosen; any may for ``auto``."""
    return nullcontext() if attention == "auto" else sdpa_kernel([_BACKENDS[attention]])


def watched(forward: Forward, spec: TrialSpec) -> Forward:
    """``forward``, whose first call raises ``UsageError`` if the kernel cannot run or the model does not choose one."""
    seen = False

    def run(model: nn.Module, inputs: Any) -> Any:
        nonlocal seen
        if seen:
            return forward(model, inputs)
        with _Calls() as calls:
            try:
                outputs = forward(model, inputs)
            except RuntimeError as problem:
                if not any(text in str(problem) for text in _NONE_CAN_RUN):
                    raise
                raise UsageError(
                    f"--attention {spec.attention} cannot run what {spec.model} asks of it on {spec.device}, "
                    f"in {spec.precision}",
                    hint="its mask, its dropout or its heads are not for this kernel: take --attention auto or math",
                ) from None
        if not calls.number:
            raise UsageError(
                f"--attention {spec.attention} chooses a kernel of scaled_dot_product_attention, and {spec.model} "
                "calls none",
                hint="leave --attention out",
            )
        seen = True
        return outputs

    return run


class _Calls(TorchFunctionMode):
    """Counts the calls of ``scaled_dot_product_attention`` inside, also those by PyTorch's own modules."""

    number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.number += 1
        return func(*args, **(kwargs or {}))
