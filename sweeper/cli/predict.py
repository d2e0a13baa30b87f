"""``sweep predict``: what fits on a card, from replays alone; nothing is run."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import click

from sweeper import api
from sweeper.cli.cost_options import no_cost_options
from sweeper.cli.model_options import model_options
from sweeper.errors import UsageError
from sweeper.predicting import Forecast
from sweeper.report import export, forecasts
from sweeper.trial import TrialSpec

__all__ = ["predict"]

YES, NO = 0, 1
_NAMED = ""  # --timeline without a name: one of our own


@click.command(short_help="Say what fits on a card, without running anything.")
@model_options(
    click.option("-c", "--card", help="A card of `sweep cards`, a size such as 24GiB, or all."),
    click.option("--batch", type=int, metavar="N", help="Does this batch fit?  Leaves with 0 if it does, else 1."),
    click.option("--budget", metavar="SIZE", help="A limit below the card's memory; without a card, all there is."),
    click.option("--max-batch", default=4096, show_default=True, help="The largest batch to look at."),
)
@click.option(
    "--timeline",
    is_flag=False,
    flag_value=_NAMED,
    metavar="[FILE.png]",
    help="Draw memory over the step, of --batch or the largest that fits; write a snapshot for PyTorch's viewer too.",
)
@click.option("--no-calibration", is_flag=True, help="Leave out what `sweep calibrate` kept of the card.")
@no_cost_options
@click.option("--no-cache", is_flag=True, help="Trace anew, and keep nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Print the number alone.")
@click.option("--color/--no-color", default=None, help="Colours; by default where the output is a terminal.")
@click.pass_context
def predict(
    context: click.Context,
    /,
    *,
    card: str | None,
    timeline: str | None,
    no_cache: bool,
    no_calibration: bool,
    as_json: bool,
    quiet: bool,
    color: bool | None,
    **question: Any,
) -> None:
    """Say what fits on a card that need not be here: the curve, the largest batch, and what would run out first.

    \b
    sweep predict --model resnet50 --precision amp-bf16 --card l4
    sweep predict --model resnet50 --card all
    sweep predict --model resnet50 --card t4 --batch 64 && echo it fits
    sweep predict --model resnet50 --batch 64 --budget 16GiB
    sweep predict --model resnet50 --card l4 --timeline
    """
    if as_json and quiet:
        raise UsageError("--json and --quiet print different things", hint="give one of them")
    if question["model"] is None:
        raise UsageError("which model?", hint="sweep predict --model resnet18 --card l4; `sweep models` lists them")
    given: dict[str, Any] = {
        **question,
        "cache": not no_cache,
        "calibration": not no_calibration,
        "on_trace": None if quiet else _say_tracing,
    }
    colored = sys.stdout.isatty() if color is None else color
    picture = _picture(timeline, card)
    if card == "all":
        if quiet:
            raise UsageError("--quiet prints one number, and --card all has many", hint="name the card, or use --json")
        found = api.predict_all(**given)
        click.echo(_json(export.forecasts_to_json(found)) if as_json else forecasts.comparison(found, color=colored))
        context.exit(YES if any(one.fits for one in found) else NO)
    one = api.predict(card=card, history=picture is not None, **given)
    files = api.draw_timeline(one, _named(one) if timeline == _NAMED else picture) if picture is not None else ()
    if quiet:
        click.echo(one.max_batch or 0)
    elif as_json:
        written = dict(zip(("png", "svg", "snapshot"), map(str, files), strict=True)) if files else None
        click.echo(_json({**export.forecast_to_json(one), "timeline": written}))
    else:
        click.echo(forecasts.summary(one, color=colored, drawn=files))
    context.exit(YES if one.fits else NO)


def _picture(timeline: str | None, card: str | None) -> Path | None:
    """Where the drawing goes, as far as it is known before the question is answered; None where none is wanted."""
    if timeline is None:
        return None
    if card == "all":
        raise UsageError("--timeline draws one card, and --card all has many", hint="name the card")
    if timeline != _NAMED and Path(timeline).suffix != ".png":
        raise UsageError(f"--timeline writes a PNG, and {timeline!r} is none", hint="name it FILE.png, or leave it out")
    return Path(timeline)


def _named(found: Forecast) -> Path:
    """A name in this folder that says what is drawn: ``resnet50-l4-b517.png``."""
    assert found.history is not None
    # my/model.py:factory is model.py-factory; what a shell would want quoted goes.
    model = re.sub(r"[^\w.+-]+", "-", found.spec.model.rpartition("/")[2])
    return Path(f"{model}-{found.card.name}-b{found.history.trace.batch_size}.png")


def _json(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=1, allow_nan=False)


def _say_tracing(spec: TrialSpec, compute_capability: str) -> None:
    click.echo(f"tracing {spec.model} as on compute capability {compute_capability}", err=True)
