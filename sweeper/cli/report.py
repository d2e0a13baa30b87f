"""``sweep report``: everything that is derived from a run's journal, made again."""

import json
import sys
from pathlib import Path

import click

from sweeper import api
from sweeper.report import text

__all__ = ["report"]


@click.command(short_help="Show a run again, and write its plots again.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--color/--no-color", default=None, help="Colours; by default where the output is a terminal.")
def report(folder: Path, as_json: bool, color: bool | None) -> None:
    """Show the run or the comparison in FOLDER, and write its summary, table and plots again."""
    colored = sys.stdout.isatty() if color is None else color
    if api.is_comparison(folder):
        found = api.load_comparison(folder)
        api.draw_comparison(folder)
        click.echo(json.dumps(found.to_dict(), indent=1) if as_json else found.text(color=colored))
        return
    run = api.load(folder)
    api.draw(folder)
    if as_json:
        click.echo(json.dumps(run.to_dict(), indent=1))
    else:
        click.echo(text.summary(run.record, folder=folder, color=colored))
