"""``sweep run``, which is also plain ``sweep``: the main job."""

import json
import os
import shlex
import sys
from pathlib import Path

import click

from sweeper import api
from sweeper.axes import AXES
from sweeper.cli.cost_options import cost_options
from sweeper.cli.model_options import model_options
from sweeper.cli.progress import Bar, Lines, Quiet
from sweeper.errors import UsageError
from sweeper.report import text

__all__ = ["ANSWERED", "BROKE", "INTERRUPTED", "NOTHING_FITS", "run", "use_color"]

ANSWERED, NOTHING_FITS, BROKE, INTERRUPTED = 0, 1, 3, 130


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",")) if text else ()
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers; write it as 8,16,32,64") from None


@click.command(short_help="Find and prove the largest batch that fits (the default).")
@model_options(
    click.option(
        "-d",
        "--device",
        default="auto",
        show_default=True,
        help="auto, cuda, cuda:1, cpu or sim:CARD. `sweep cards` lists the cards.",
    ),
    click.option("--max-batch", default=512, show_default=True, help="The largest batch to try."),
    click.option("--min-batch", default=1, show_default=True, help="The smallest batch to try."),
    click.option(
        "--batches", callback=_numbers, metavar="N,N,...", help="Measure just these, ascending, until one runs out."
    ),
    click.option("--axis", default="batch", show_default=True, metavar="|".join(AXES), help="What to vary."),
    click.option("--min", "min_size", type=int, metavar="N", help="The smallest size along the axis."),
    click.option("--max", "max_size", type=int, metavar="N", help="The largest size along the axis."),
    click.option("--step", type=int, metavar="N", help="Sizes are multiples of it; the model's own by default."),
    click.option("--batch-size", default=1, show_default=True, metavar="N", help="The batch, for another axis."),
    click.option(
        "--target-batch", type=int, metavar="N", help="Say which batch and accumulation make this effective batch."
    ),
)
@click.option("--memory-limit", metavar="SIZE", help="Lower the device's capacity: 8GiB, 16GB.")
@click.option("--confirm", type=int, help="Times the answer must fit.  [default: 2, simulated 1]")
@click.option("--points", default=6, show_default=True, help="Batches measured for the curve.")
@click.option("--margin", default=0.05, show_default=True, help="Share of capacity the recommended batch leaves free.")
@click.option("--round-to", type=int, metavar="N", help="Make the recommended batch a multiple of N.")
@cost_options
@click.option("--no-predict", is_flag=True, help="Search without a prediction to start from.")
@click.option("--no-calibration", is_flag=True, help="Leave out what `sweep calibrate` kept of the card.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, metavar="SECONDS", help="Time limit a trial.")
@click.option(
    "--isolation",
    default="fork",
    show_default=True,
    metavar="fork|spawn",
    help="fork a prepared process a trial, or start a new interpreter.",
)
@click.option("--host-memory-limit", metavar="SIZE", help="End a trial that takes more of the machine's memory.")
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=True), help="Where the run goes.  [default: in results/]"
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="FOLDER", help="Go on with an interrupted sweep.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Print the number alone.")
@click.option("--color/--no-color", default=None, help="Colours; by default where the output is a terminal.")
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    resume: Path | None,
    as_json: bool,
    quiet: bool,
    color: bool | None,
    no_predict: bool,
    no_calibration: bool,
    **question: object,
) -> None:
    """Find and prove the largest batch that fits (the default command)."""
    if as_json and quiet:
        raise UsageError("--json and --quiet print different things", hint="give one of them")
    use_color(context, color)
    progress = Quiet() if quiet else Bar() if sys.stderr.isatty() else Lines()
    if resume is not None:
        _refuse_with_resume(context)
    elif question["model"] is None:
        raise UsageError("which model?", hint="sweep --model resnet18 --max-batch 512; `sweep models` lists them")
    try:
        with progress:
            if resume is not None:
                found = api.resume(resume, observer=progress)
            else:
                command = ["sweep", *sys.argv[1:]]
                chosen = {"predict": not no_predict, "calibration": not no_calibration}
                # The names of the options are those of the function's parameters.
                found = api.sweep(**question, **chosen, observer=progress, command=command)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        if progress.folder is not None:
            click.echo(f"interrupted; go on with: sweep --resume {shlex.quote(str(progress.folder))}", err=True)
        context.exit(INTERRUPTED)
    _print(found, as_json=as_json, quiet=quiet)
    context.exit(BROKE if found.record.broken else NOTHING_FITS if found.max_size is None else ANSWERED)


def _print(found: api.Run, *, as_json: bool, quiet: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=1))
    elif quiet:
        click.echo(found.max_size or 0)
    if quiet or as_json:
        if (broken := found.record.broken) is not None:
            click.echo(f"sweep: trials broke: {broken.reason}\n  read {found.folder}/trials", err=True)
        return
    color = click.get_current_context().color
    click.echo(text.summary(found.record, folder=found.folder, color=sys.stdout.isatty() if color is None else color))


def use_color(context: click.Context, color: bool | None) -> None:
    """NO_COLOR and TERM=dumb are honoured unless the flag says otherwise (no-color.org)."""
    if color is None and (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"):
        color = False
    context.color = color


def _refuse_with_resume(context: click.Context) -> None:
    """The question is in the folder; flags that would change it are refused, not ignored."""
    allowed = {"resume", "as_json", "quiet", "color"}
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in allowed and _is_given(context, parameter.name)
    ]
    if given:
        raise UsageError(
            f"--resume goes on with what was asked before; it does not take {', '.join(given)}",
            hint="leave it out, or start a new sweep",
        )


def _is_given(context: click.Context, name: str | None) -> bool:
    source = context.get_parameter_source(name) if name else None
    return source is click.core.ParameterSource.COMMANDLINE
