"""``torch.compile``: of the model, on a GPU, and whether what it needs is there.

The model is compiled in place (``nn.Module.compile``), so its parameters keep their names, and the first step compiles.
What it takes from then on is what the compiled program takes: fused operators have no results of their own, and what
backward reads may be computed again.  That is not known without running it, so it is measured on ``cuda`` alone.
"""

from torch import nn
from torch.utils._triton import has_triton

from sweeper.errors import UsageError

__all__ = ["check_compiler", "compile_model"]


def compile_model(model: nn.Module) -> None:
    """Have ``model`` compiled at its first call.  Raises ``UsageError`` where there is no compiler for the GPU."""
    check_compiler("--compile")
    model.compile()


def check_compiler(asked_by: str) -> None:
    """Raises ``UsageError`` without Triton, or on a GPU that it does not know (compute capability below 7.0)."""
    if not has_triton():
        raise UsageError(
            f"{asked_by} needs Triton for this GPU, and PyTorch finds none",
            hint="pip install triton, or leave it out",
        )
