"""The options that say what is trained, which every command that trains or traces takes alike."""

import json
from collections.abc import Callable
from typing import Any

import click

from sweeper.trial import MODES, OPTIMIZERS, PRECISIONS

__all__ = ["model_options"]

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _model_args(
    _context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, int | float | bool | str]:
    arguments: dict[str, int | float | bool | str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{pair!r} is no argument; write it as depth=8")
        arguments[name] = _value(value)
    return arguments


def _value(text: str) -> int | float | bool | str:
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
        callback=_model_args,
        metavar="NAME=VALUE",
        help="An argument of the model's constructor; may be repeated.",
    ),
)
_STEP: tuple[_Decorator, ...] = (
    click.option("--precision", default="fp32", show_default=True, metavar="|".join(PRECISIONS)),
    click.option("--optimizer", default="sgd", show_default=True, metavar="|".join(OPTIMIZERS)),
    click.option("--mode", default="train", show_default=True, metavar="|".join(MODES)),
    click.option("--image-size", type=click.IntRange(min=1), help="Pixels a side; the model's own by default."),
    click.option("--steps", default=3, show_default=True, help="Full training steps a trial runs."),
)


def model_options(*own: _Decorator) -> _Decorator:
    """A decorator: the model's options, then the command's ``own`` that belong beside them, then the step's."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed((*_MODEL, *own, *_STEP)):
            command = option(command)
        return command

    return decorate
