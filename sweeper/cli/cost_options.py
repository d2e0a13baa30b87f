"""The options that ask what a whole training takes, for the commands that show measured speeds."""

from collections.abc import Callable
from typing import Any

import click

from sweeper.errors import UsageError

__all__ = ["cost_options", "no_cost_options"]

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_COST: tuple[_Decorator, ...] = (
    click.option("--price", metavar="0.80/h", help="Of the device for an hour: 0.80/h, $0.80/h; or `list`."),
    click.option("--samples", type=int, metavar="N", help="In one epoch: says the hours, and with --price the cost."),
    click.option("--epochs", type=float, metavar="N", help="How many of them.  [default: 1]"),
)


def cost_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` the parameters ``price``, ``samples`` and ``epochs``."""
    for option in reversed(_COST):
        command = option(command)
    return command


def _refuse(_context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is not None:
        raise UsageError(
            f"{parameter.opts[-1]} asks for a time, and a prediction has none: no step is run",
            hint="measure it: sweep --model ... --device cuda --price 0.80/h --samples 1281167 --epochs 90",
        )


def no_cost_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Have ``command``, which times nothing, refuse them with the reason."""
    for name in ("--price", "--samples", "--epochs"):
        command = click.option(name, hidden=True, expose_value=False, callback=_refuse)(command)
    return command
