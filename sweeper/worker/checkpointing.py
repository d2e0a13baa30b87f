"""Activation checkpointing: repeated blocks keep only their inputs, and run a second time in backward.

A library's own switch comes first (``Workload.checkpoint``).  Without one, blocks are found by structure: modules with
children of their own that follow a sibling of the same class, as the encoder layers of a transformer or the bottlenecks
of a residual network do.  ``nn.Sequential`` and its like are seen through, so it is the blocks of a stage that count;
and a block that is itself mostly a chain of blocks, as a stage with a class of its own is, gives way to those.  A flat
chain of layers, as of VGG or our teaching models, is cut where a layer with weights begins the same few layers again.

Each block runs inside ``torch.utils.checkpoint.checkpoint`` without reentrant autograd, so frozen blocks and keyword
arguments are no matter; random numbers are drawn again alike.  Nothing is renamed: the block's ``forward`` is replaced
and its module stays.  A block's own forward hooks run once a step, those of the modules inside it twice.  Batch norm
inside a block sees each batch twice, so that its running statistics move twice; torch says the same of
``checkpoint_sequential``.

Not known: blocks that a model calls by another method than ``forward``; they are wrapped, and nothing is saved.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from sweeper.errors import UsageError
from sweeper.worker.models import Workload

__all__ = ["wrap_blocks"]

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_STATISTICS = nn.modules.batchnorm._NormBase
_MOSTLY = 0.5  # of a block's parameters: what is more is what the block is made of


def wrap_blocks(workload: Workload, name: str) -> str:
    """Checkpoint the blocks of ``workload``'s model, which is called ``name``; returns what was wrapped, in words.

    Raises ``UsageError`` where the model has no blocks.
    """
    if workload.checkpoint is not None:
        return f"checkpointed: {workload.checkpoint()}"
    blocks = _blocks(workload.model)
    for block in blocks:
        block.module.forward = _checkpointed(block.module.forward)
    chains = [] if blocks else _chains(workload.model)
    for chain in chains:
        chain.module.forward = chain.run  # type: ignore[method-assign]
    if not blocks and not chains:
        raise UsageError(
            f"{name} has no repeated blocks to checkpoint",
            hint="leave --checkpointing out, or call torch.utils.checkpoint in a model of your own",
        )
    found = _in_words(blocks) if blocks else ", ".join(chain.in_words() for chain in chains)
    wrapped = [block.module for block in blocks] or [chain.module for chain in chains]
    twice = any(isinstance(inner, _STATISTICS) for module in wrapped for inner in module.modules())
    return f"checkpointed: {found}{'; batch norm in them sees each batch twice' if twice else ''}"


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *map(_as_it_is_now, args), use_reentrant=False, **kwargs)

    return run


def _as_it_is_now(argument: Any) -> Any:
    """A list that the caller may go on filling, as a dense block of DenseNet does, is not the one to run again on."""
    return list(argument) if type(argument) is list else argument


@dataclass(frozen=True)
class _Block:
    path: str
    module: nn.Module


def _blocks(model: nn.Module, path: str = "") -> list[_Block]:
    """The outermost repeated blocks below ``model``, in order; where they are chains of blocks themselves, those."""
    found: list[_Block] = []
    repeated = _repeated(model)
    for name, child in model.named_children():
        inside = f"{path}.{name}" if path else name
        if type(child) not in repeated:
            found += _blocks(child, inside)
            continue
        found += _chain_in(child, inside) or [_Block(inside, child)]
    # A stage of one block belongs to the others of its class: MBConv of EfficientNet.
    return found if path else [*_lone(model, found)]


def _repeated(model: nn.Module) -> set[type[nn.Module]]:
    """The classes of children that follow a sibling of their own class, and can be blocks."""
    return {type(second) for first, second in pairwise(model.children()) if type(first) is type(second)
            and _can_be_block(first) and _can_be_block(second)}  # fmt: skip


def _can_be_block(module: nn.Module) -> bool:
    return not isinstance(module, _CONTAINERS) and any(module.children()) and _parameters(module) > 0


def _chain_in(block: nn.Module, path: str) -> list[_Block]:
    """The blocks of the one container in ``block`` that has any, if they hold most of its parameters.

    Several are branches side by side, as in an inception module, and no chain.
    """
    chains = [
        finer
        for name, container in block.named_children()
        if isinstance(container, _CONTAINERS) and (finer := _blocks(container, f"{path}.{name}"))
    ]
    held = sum(_parameters(inner.module) for chain in chains for inner in chain)
    return chains[0] if len(chains) == 1 and held > _MOSTLY * _parameters(block) else []


def _lone(model: nn.Module, found: Sequence[_Block]) -> Iterator[_Block]:
    """``found`` with the modules of the same classes that stand alone, in the model's order."""
    kinds = {type(block.module) for block in found}
    inside: tuple[str, ...] = ()
    for path, module in model.named_modules():
        if type(module) in kinds and not path.startswith(inside):
            yield _Block(path, module)
            inside = (*inside, f"{path}.")


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _in_words(blocks: Sequence[_Block]) -> str:
    """``24 blocks of encoder.layers (EncoderBlock)``; of several places, what their paths have in common."""
    parents = [block.path.split(".")[:-1] for block in blocks]
    shared = []
    for parts in zip(*parents, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    kinds = ", ".join(dict.fromkeys(type(block.module).__name__ for block in blocks))
    of = f" of {'.'.join(shared)}" if shared else ""
    return f"{len(blocks)} blocks{of} ({kinds})"


# -- flat chains ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Chain:
    """A plain ``nn.Sequential``; each of ``starts`` begins ``unit``, the classes of layers that repeat."""

    path: str
    module: nn.Sequential
    starts: tuple[int, ...]
    unit: tuple[type[nn.Module], ...]

    def run(self, value: Any) -> Any:
        layers = list(self.module)
        at = 0
        while at < len(layers):
            if at in self.starts:
                unit = layers[at : at + len(self.unit)]
                value = checkpoint(_in_turn, unit, value, use_reentrant=False)
                at += len(unit)
            else:
                value = layers[at](value)
                at += 1
        return value

    def in_words(self) -> str:
        layers = ", ".join(kind.__name__ for kind in self.unit)
        return f"{len(self.starts)} blocks{f' of {self.path}' if self.path else ''} ({layers})"


def _in_turn(layers: Sequence[nn.Module], value: Any) -> Any:
    for layer in layers:
        value = layer(value)
    return value


def _chains(model: nn.Module) -> list[_Chain]:
    found = [_chain(path, module) for path, module in model.named_modules() if type(module) is nn.Sequential]
    return [chain for chain in found if chain is not None]


def _chain(path: str, module: nn.Sequential) -> _Chain | None:
    """The chain that begins anew with each layer of the class that is most often there with weights; None without."""
    kinds = [type(layer) for layer in module]
    counted = Counter(type(layer) for layer in module if _parameters(layer) and not any(layer.children()))
    if not counted:
        return None
    (first, times), *_ = counted.most_common()
    starts = [at for at, kind in enumerate(kinds) if kind is first]
    parts = [tuple(kinds[start:end]) for start, end in pairwise([*starts, len(kinds)])]
    unit = parts[0]
    for part in parts[1:-1]:  # the last goes on into what is no block: pooling, the classifier
        unit = unit[: next((n for n, (a, b) in enumerate(zip(unit, part, strict=False)) if a is not b), len(part))]
    begun = tuple(start for start, part in zip(starts, parts, strict=True) if part[: len(unit)] == unit)
    return _Chain(path, module, begun, unit) if times > 1 and len(unit) > 1 and len(begun) > 1 else None
