"""The options that say what is trained, which every command that trains or traces takes alike."""

import json
from collections.abc import Callable
from typing import Any

import click

from sweeper.trial import ATTENTIONS, MODES, OPTIMIZERS, PRECISIONS, Scalar

__all__ = ["model_options"]

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _arguments(_context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Scalar]:
    arguments: dict[str, Scalar] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{pair!r} is no argument; write it as depth=8")
        arguments[name] = _value(value)
    return arguments


def _value(text: str) -> Scalar:
    """``8`` is a number, ``true`` is a truth value, anything else is text."""
    try:
        value = json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | bool | str) else text


_MODEL: tuple[_Decorator, ...] = (
    click.option(
        "-m", "--model", help="A torchvision name, one of ours, or file.py:factory. `sweep models` lists them."
    ),
    click.option(
        "--model-arg",
        "model_args",
        multiple=True,
        callback=_arguments,
        metavar="NAME=VALUE",
        help="An argument of the model's constructor; may be repeated.",
    ),
    click.option("--config", metavar="FILE.json", help="A model configuration, for libraries that build from one."),
)
_STEP: tuple[_Decorator, ...] = (
    click.option("--image-size", type=int, metavar="N", help="Pixels a side; the model's own by default."),
    click.option("--seq-len", type=int, metavar="N", help="Tokens a sequence; the model's own by default."),
    click.option("--precision", default="fp32", show_default=True, metavar="|".join(PRECISIONS)),
    click.option("--optimizer", default="sgd", show_default=True, metavar="|".join(OPTIMIZERS)),
    click.option(
        "--optimizer-arg",
        "optimizer_args",
        multiple=True,
        callback=_arguments,
        metavar="NAME=VALUE",
        help="An argument of the optimizer's constructor, such as fused=true; may be repeated.",
    ),
    click.option("--mode", default="train", show_default=True, metavar="|".join(MODES)),
    click.option("--accumulate", default=1, metavar="N", help="Batches whose gradients make one step."),
    click.option("--checkpointing", is_flag=True, help="Compute the activations of repeated blocks again in backward."),
    click.option("--freeze", multiple=True, metavar="PATTERN", help="Parameters not trained, such as 'layer1.*'."),
    click.option("--lora", type=int, metavar="RANK", help="Train adapters of this rank, and nothing else (peft)."),
    click.option("--channels-last", is_flag=True, help="Hold images and convolutions in that memory format."),
    click.option("--compile", is_flag=True, help="Train what torch.compile makes of the model; on cuda."),
    click.option("--attention", default="auto", show_default=True, metavar="|".join(ATTENTIONS)),
    click.option("--alloc-conf", metavar="TEXT", help="PyTorch's allocator, as in PYTORCH_CUDA_ALLOC_CONF."),
    click.option("--steps", default=3, show_default=True, help="Full training steps a trial runs."),
    click.option("--seed", default=0, show_default=True, help="Of the weights and the batches."),
)


def model_options(*own: _Decorator) -> _Decorator:
    """A decorator: the model's options, then the command's ``own`` that belong beside them, then the step's."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed((*_MODEL, *own, *_STEP)):
            command = option(command)
        return command

    return decorate
