"""Builds a model on the meta device, also where its constructor computes with values.

``with torch.device("meta")`` makes *every* tensor of a constructor meta, so one that reads a value fails:
torchvision's regnet calls ``.tolist()`` on its widths, and many a library ``.item()`` on its drop-path rates.  Here
the constructor runs on the CPU, and each parameter becomes meta in the moment it is registered.  The CPU copy is
``torch.empty`` until then, pages never touched, and the initialisation that follows is a meta operation: no memory
and no time.  Buffers are small and may be computed from, so they move last.

What it does not cover: a constructor that reads the value of a *parameter*.  That one is built on the CPU, whole, and
moved; for that moment the host holds the weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from sweeper.errors import UsageError
from sweeper.worker.models import Workload

__all__ = ["build_on_meta", "parameters_on_meta"]


def build_on_meta(build: Callable[[], Workload]) -> Workload:
    """Return ``build()`` with its model on meta.  What ``build`` raises comes through, with its own traceback."""
    with torch.device("cpu"):
        workload = _without_values(build) or build()
        workload.model.to("meta")
    return workload


def _without_values(build: Callable[[], Workload]) -> Workload | None:
    """Return ``build()`` with meta parameters, or None when it needs their values."""
    try:
        with parameters_on_meta():
            return build()
    except (UsageError, torch.OutOfMemoryError):
        raise
    except Exception:
        # There is no one error for "this needs values": item, numpy, set_data and nonzero each raise another.  The
        # caller builds again on the CPU; if the fault was the model's own, it comes again there, and is seen.
        return None


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Every parameter registered inside, by any module, is a meta parameter of the same shape and type.

    A parameter that two modules share stays shared.
    """
    moved = WeakIdKeyDictionary()

    def move(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta or is_lazy(parameter):
            return None
        if parameter not in moved:
            moved[parameter] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        return moved[parameter]  # type: ignore[no-any-return]

    hook = register_module_parameter_registration_hook(move)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()
