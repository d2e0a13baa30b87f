"""``sweep report``: everything that is derived from a run's journal, made again."""

import json
import sys
from pathlib import Path

import click

from sweeper import api
from sweeper.cli.cost_options import cost_options
from sweeper.errors import UsageError
from sweeper.report import text

__all__ = ["report"]


@click.command(short_help="Show a run again, and write its plots again.")
@click.argument("folder", type=click.Path(path_type=Path))
@cost_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--color/--no-color", default=None, help="Colours; by default where the output is a terminal.")
def report(
    folder: Path, price: str | None, samples: int | None, epochs: float | None, as_json: bool, color: bool | None
) -> None:
    """Show the run or the comparison in FOLDER, and write its summary, table and plots again.

    What a whole training takes is shown as it was asked of the sweep, or as it is asked now.
    """
    colored = sys.stdout.isatty() if color is None else color
    if api.is_comparison(folder):
        if price is not None or samples is not None or epochs is not None:
            raise UsageError(
                f"{folder} holds a comparison, and a cost is shown of one run", hint="name one of the runs in it"
            )
        found = api.load_comparison(folder)
        api.draw_comparison(folder)
        click.echo(json.dumps(found.to_dict(), indent=1) if as_json else found.text(color=colored))
        return
    run = api.load(folder, price=price, samples=samples, epochs=epochs)
    api.draw(folder, run.record.header.settings.schedule)
    if as_json:
        click.echo(json.dumps(run.to_dict(), indent=1))
    else:
        click.echo(text.summary(run.record, folder=folder, color=colored))
