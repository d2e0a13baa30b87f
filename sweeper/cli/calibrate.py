"""``sweep calibrate``: what the GPU at hand takes and the simulation does not know, measured and kept."""

import json
from pathlib import Path

import click

from sweeper import api
from sweeper.calibration import Calibration
from sweeper.errors import UsageError
from sweeper.report import calibrations as shown
from sweeper.trial import TrialSpec
from sweeper.wire import to_jsonable

__all__ = ["calibrate"]


@click.command(short_help="Measure the GPU at hand, for better predictions.")
@click.option("-d", "--device", default="cuda", show_default=True, help="The GPU to measure: cuda or cuda:1.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, metavar="SECONDS", help="Time limit a trial.")
@click.option("--list", "lists", is_flag=True, help="List what is kept, and measure nothing.")
@click.option("--forget", metavar="CARD", help="Remove what is kept of a card, and measure nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.pass_context
def calibrate(
    context: click.Context, /, *, device: str, timeout_s: float, lists: bool, forget: str | None, as_json: bool
) -> None:
    """Measure what the GPU at hand takes outside PyTorch's allocator, and how far its peaks are from the simulated.

    Runs a few small training jobs on it, and keeps what it finds.  From then on sim:CARD and sweep predict use that
    for this card and say so; --no-calibration goes without.
    """
    if forget is not None and lists:
        raise UsageError("--forget and --list are two questions", hint="give one of them")
    if forget is not None or lists:
        _refuse_to_measure(context)
    if forget is not None:
        name = api.calibrations().forget(forget)
        click.echo(json.dumps({"forgot": name}) if as_json else f"forgot the calibration of {name}")
    elif lists:
        kept = api.calibrations()
        found = [one for name in kept.names() if (one := kept.get(name)) is not None]
        click.echo(_json([_as_json(one) for one in found]) if as_json else shown.listing(found))
    else:
        measured, file = api.calibrate(device=device, timeout_s=timeout_s, on_job=_say_job)
        click.echo(_json(_as_json(measured, file)) if as_json else shown.summary(measured, file))


def _as_json(found: Calibration, file: Path | None = None) -> dict[str, object]:
    """The fields of the calibration, and what is used of them."""
    used = {"outside_bytes": found.outside_bytes, "reserved_offset_bytes": found.reserved_offset_bytes}
    return {**to_jsonable(found), **used, **({"file": str(file)} if file else {})}


def _json(body: object) -> str:
    return json.dumps(body, indent=1, allow_nan=False)


def _say_job(job: TrialSpec) -> None:
    click.echo(f"training {shown.job_name(job.model, job.precision, job.batch_size)}", err=True)


def _refuse_to_measure(context: click.Context) -> None:
    """Flags of a measurement are refused, not ignored."""
    for name, flag in (("device", "--device"), ("timeout_s", "--timeout")):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"{flag} is for measuring, and --list and --forget measure nothing", hint="leave it out")
