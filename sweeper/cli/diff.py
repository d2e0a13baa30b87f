"""``sweep diff``: what changed between two runs."""

import json
import sys
from pathlib import Path

import click

from sweeper import api
from sweeper.report import differences

__all__ = ["diff"]

SAME, DIFFERENT = 0, 1


@click.command(short_help="Tell what changed between two runs.")
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--tolerance", default=0.01, show_default=True, help="The share up to which a difference is none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.option("--color/--no-color", default=None, help="Colours; by default where the output is a terminal.")
@click.pass_context
def diff(
    context: click.Context, /, *, before: Path, after: Path, tolerance: float, as_json: bool, color: bool | None
) -> None:
    """Tell what changed from the run in BEFORE to the one in AFTER.

    Compares machine, versions, what was asked, the peaks of the sizes that fitted in both, the boundary, and speed.
    Leaves with 1 when the boundary or a peak differs by more than the tolerance, else with 0.
    """
    found = api.diff(before, after, tolerance=tolerance)
    if as_json:
        click.echo(json.dumps(differences.to_json(found, before=before, after=after), indent=1, allow_nan=False))
    else:
        colored = sys.stdout.isatty() if color is None else color
        click.echo(differences.summary(found, before=before, after=after, color=colored))
    context.exit(DIFFERENT if found.matters else SAME)
