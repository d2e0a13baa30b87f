"""``sweep frontier``: the largest batch at each sequence length, predicted, and measured where asked."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from sweeper import api
from sweeper.boundary import Frontier, MeasuredPoint
from sweeper.cli.model_options import model_options
from sweeper.cli.progress import Lines, Quiet
from sweeper.errors import UsageError
from sweeper.report import frontier as shown
from sweeper.trial import TrialSpec

__all__ = ["frontier"]

ANSWERED, NOTHING_FITS, BROKE = 0, 1, 3


@click.command(short_help="The largest batch at each sequence length.")
@model_options(
    click.option("--max-batch", default=64, show_default=True, help="The largest batch to look at."),
    click.option(
        "--max-seq-len", type=int, metavar="N", help="The longest sequence; the model's positions by default."
    ),
    click.option("--min-seq-len", type=int, metavar="N", help="The shortest; one step by default."),
    click.option(
        "--step", type=int, metavar="N", help="Lengths are multiples of it; by default some 20 to 40 of them."
    ),
    click.option("-d", "--device", default="auto", show_default=True, help="auto, cuda, cuda:1, cpu or sim:CARD."),
    click.option("-c", "--card", help="A card of `sweep cards`: short for --device sim:CARD."),
)
@click.option("--measure", "measure_points", default=0, metavar="N", help="Run N points as trials, on both sides.")
@click.option("--memory-limit", metavar="SIZE", help="Lower the device's capacity: 8GiB, 16GB.")
@click.option("--no-calibration", is_flag=True, help="Leave out what `sweep calibrate` kept of the card.")
@click.option("--no-cache", is_flag=True, help="Trace anew, and keep nothing.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, metavar="SECONDS", help="Time limit a trial.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=True),
    help="Where its files go; trials that are there already are not run again.  [default: in results/]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Print the most tokens a batch alone.")
@click.option("--color/--no-color", default=None, help="Colours; by default where the output is a terminal.")
@click.pass_context
def frontier(
    context: click.Context,
    /,
    *,
    device: str,
    card: str | None,
    no_cache: bool,
    no_calibration: bool,
    as_json: bool,
    quiet: bool,
    color: bool | None,
    **question: Any,
) -> None:
    """Say what the largest batch is at each sequence length, and where a batch has most tokens.

    \b
    sweep frontier --model tiny-transformer --max-batch 64 --max-seq-len 2048 --card l4
    sweep frontier --model tiny-transformer --max-seq-len 2048 --device cuda --measure 6
    """
    if as_json and quiet:
        raise UsageError("--json and --quiet print different things", hint="give one of them")
    if question["model"] is None:
        raise UsageError("which model?", hint="sweep frontier --model tiny-transformer --max-seq-len 2048 --card l4")
    if card is not None and device != "auto":
        raise UsageError("--card and --device both say where", hint="leave one of them out")
    say = _Silent() if quiet else _Lines()
    found, folder = api.frontier(
        **question,
        device=device if card is None else f"sim:{card}",
        cache=not no_cache,
        calibration=not no_calibration,
        observer=Quiet() if quiet else Lines(),
        on_trace=say.trace,
        on_trial=say.trial,
    )
    if quiet:
        click.echo(found.best.tokens if found.best else 0)
    elif as_json:
        click.echo(json.dumps(shown.to_json(found, folder), indent=1, allow_nan=False))
    else:
        click.echo(shown.summary(found, color=sys.stdout.isatty() if color is None else color, folder=folder))
    context.exit(_code(found))


def _code(found: Frontier) -> int:
    if any(point.fits is None for point in found.measured):
        return BROKE
    return NOTHING_FITS if found.best is None else ANSWERED


class _Silent:
    """Told what happens, as it happens."""

    def trace(self, spec: TrialSpec, compute_capability: str) -> None: ...

    def trial(self, point: MeasuredPoint) -> None: ...


class _Lines(_Silent):
    """Says it on stderr, a line each; the first trace stands for all."""

    _traced = False

    def trace(self, spec: TrialSpec, compute_capability: str) -> None:
        if not self._traced:
            click.echo(f"tracing {spec.model} as on compute capability {compute_capability}", err=True)
        self._traced = True

    def trial(self, point: MeasuredPoint) -> None:
        said = {True: "fits", False: "OUT OF MEMORY", None: "BROKE"}[point.fits]
        other = "" if point.agrees else ", which was not predicted"
        click.echo(f"length {point.length:,}, batch {point.batch:,}: {said}{other}", err=True)
