"""Which module an operator runs for: the innermost one in forward; in backward, the one whose forward made the node.

Autograd numbers the nodes of a thread in the order in which they are made (``Node::sequence_nr``,
torch/csrc/autograd/function.h), and the next number can be read.  So writing down that number whenever a module's
forward begins or ends gives intervals, and a node's number finds its module by bisection: two hooks a module, nothing
an operator.  ``AccumulateGrad`` nodes all have the largest number; their parameter's owner is looked up instead.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

__all__ = ["ACCUMULATE_GRAD", "ModulePaths"]

ACCUMULATE_GRAD = 2**64 - 1  # the sequence number of every AccumulateGrad node: UINT64_MAX


class ModulePaths:
    """Follows the forward of every module by global hooks, while ``followed``."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._owners: dict[int, str] = {}  # id of a parameter -> path of its module
        self._stack: list[str] = [""]
        self._starts: list[int] = [0]
        self._paths: list[str] = [""]

    def name(self, model: nn.Module) -> None:
        """Learn the dotted path of every module in ``model``, and of the owner of every parameter."""
        for path, module in model.named_modules():
            self._names[id(module)] = path
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._owners.setdefault(id(parameter), path)

    @contextmanager
    def followed(self) -> Iterator[None]:
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def forget_graph(self) -> None:
        """Drop the intervals of a step that is over."""
        self._starts, self._paths = [0], [self._stack[-1]]

    def in_forward(self) -> str:
        return self._stack[-1]

    def in_backward(self, node: Any) -> str:
        """Return the path for autograd ``node``; the innermost running module when there is none."""
        if node is None or len(self._stack) > 1:
            return self._stack[-1]
        number = node._sequence_nr()
        if number == ACCUMULATE_GRAD:
            return self._owners.get(id(node.variable), "")
        return self._paths[bisect_right(self._starts, number) - 1]

    def _enter(self, module: nn.Module, _: Any) -> None:
        path = self._names.get(id(module)) if id(module) in self._names else type(module).__name__
        self._begin(path or "")
        self._stack.append(path or "")

    def _leave(self, *_: Any) -> None:
        if len(self._stack) > 1:
            self._stack.pop()
        self._begin(self._stack[-1])

    def _begin(self, path: str) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._paths.append(path)
