"""``sweep compare``: the same sweep for every combination of choices, side by side."""

import copy
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from sweeper import api
from sweeper.cli.progress import CompareBar, CompareLines
from sweeper.cli.run import ANSWERED, BROKE, INTERRUPTED, NOTHING_FITS, run, use_color
from sweeper.comparing import CAP
from sweeper.comparison import SORTS, Sort
from sweeper.errors import UnknownName, UsageError
from sweeper.questions import Options

__all__ = ["compare"]

# Of ``sweep run`` everything that is asked of a sweep; what it does with the answer is a command's own.
_SHARED = {*Options.__annotations__, "model", "folder", "no_predict", "no_calibration"}
_SHARED -= {"target_batch", "price", "samples", "epochs"}


def _options_of_a_sweep() -> list[click.Parameter]:
    """Those of ``sweep run``, so that what a sweep can be asked a comparison can."""
    found = [copy.copy(parameter) for parameter in run.params if parameter.name in _SHARED]
    for parameter in found:
        if parameter.name == "max_batch":
            parameter.default = CAP
    return found


def _varied(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, list[str]]:
    vary: dict[str, list[str]] = {}
    for text in given:
        field, equals, values = text.partition("=")
        if not equals or not field or not all(values.split(",")):
            raise click.BadParameter(f"{text!r} is no choice; write it as precision=fp32,amp-bf16")
        if field in vary:
            raise click.BadParameter(f"{field} is varied twice; give all of its values in one --vary")
        vary[field] = values.split(",")
    return vary


@click.command(params=_options_of_a_sweep(), short_help="Sweep every combination of choices, side by side.")
@click.option(
    "--vary",
    multiple=True,
    callback=_varied,
    metavar="FIELD=VALUE,VALUE",
    help="A choice and its values: precision=fp32,amp-bf16, checkpointing=off,on, model.depth=4,8; may be repeated.",
)
@click.option("--sort", default="largest", show_default=True, metavar="|".join(SORTS), help="The table's order.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Go on with one interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--color/--no-color", default=None, help="Colours; by default where the output is a terminal.")
@click.pass_context
def compare(
    context: click.Context,
    /,
    *,
    vary: dict[str, list[str]],
    sort: Sort,
    resume: Path | None,
    as_json: bool,
    color: bool | None,
    **_options: object,
) -> None:
    """Sweep every combination of the choices that --vary names, and set them side by side.

    \b
    sweep compare --model resnet50 --device sim:l4 --vary precision=fp32,amp-bf16 --vary optimizer=sgd,adamw
    sweep compare --model resnet18 --vary device=sim:l4,sim:t4,sim:a100-40gb

    Takes the options of sweep run, for all combinations alike.
    """
    if sort not in SORTS:
        raise UnknownName("order", sort, SORTS, listing=f"known: {', '.join(SORTS)}")
    use_color(context, color)
    progress = CompareBar() if sys.stderr.isatty() else CompareLines()
    given = _given(context)
    if resume is not None and (given or vary):
        flags = [*(["--vary"] if vary else []), *(f"--{name.replace('_', '-')}" for name in given)]
        raise UsageError(
            f"--resume goes on with what was asked before; it does not take {', '.join(flags)}",
            hint="leave it out, or start a new comparison",
        )
    try:
        with progress:
            if resume is not None:
                found = api.resume_comparison(resume, observer=progress)
            else:
                command = ["sweep", *sys.argv[1:]]
                found = api.compare(vary=vary, observer=progress, command=command, **given)
    except KeyboardInterrupt:
        if progress.folder is not None:
            click.echo(f"interrupted; go on with: sweep compare --resume {shlex.quote(str(progress.folder))}", err=True)
        context.exit(INTERRUPTED)
    colored = sys.stdout.isatty() if context.color is None else context.color
    click.echo(json.dumps(found.to_dict(), indent=1) if as_json else found.text(sort=sort, color=colored))
    if any(entry.record.broken for entry in found.entries):
        context.exit(BROKE)
    context.exit(ANSWERED if any(entry.largest is not None for entry in found.entries) else NOTHING_FITS)


def _given(context: click.Context) -> dict[str, Any]:
    """The options that were typed, by the names of the Python interface; the rest have its defaults."""
    found = {
        name: value
        for name, value in context.params.items()
        if name in _SHARED and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    for flag, name in (("no_predict", "predict"), ("no_calibration", "calibration")):
        if found.pop(flag, False):
            found[name] = False
    return found
