"""``sweep models``: the models that can be named."""

import json
from collections.abc import Sequence

import click

from sweeper import listing
from sweeper.api import describe_models
from sweeper.errors import UnknownName
from sweeper.listing import Listed
from sweeper.report.table import Column, lay_out

__all__ = ["models"]

_WIDTH = 120
_FEW = 12


class _NotListed(UnknownName):
    """The answer is no: the pattern picks nothing."""

    exit_code = 1


@click.command(short_help="List the models that have a name.")
@click.argument("pattern", default="")
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
def models(pattern: str, as_json: bool) -> None:
    """List the models that --model knows by name; PATTERN picks by part of the name, or as 'timm:vit_*224'."""
    found: Sequence[Listed] = listing.matching(pattern)
    if not found:
        names = (row.name for row in listing.listed())
        raise _NotListed("model", pattern, names, listing="`sweep models` lists them all")
    found = _completed(found)
    if as_json:
        rows = [{"name": row.name, "parameters": row.parameters, "inputs": row.inputs} for row in found]
        click.echo(json.dumps(rows, indent=1))
        return
    click.echo(_table(found))
    count = "1 model" if len(found) == 1 else f"{len(found)} models"
    click.echo(f"\n{count}. Your own: --model path/to/file.py:factory or package.module:factory", err=True)
    click.echo("Any other of transformers: --model hf:NAME, where the hub is reached, or --config FILE.json", err=True)


def _completed(found: Sequence[Listed]) -> Sequence[Listed]:
    """With what the list does not tell asked of a worker, where so few are meant that it is worth the seconds."""
    missing = [row.name for row in found if row.parameters is None]
    if not missing or len(found) > _FEW:
        return found
    told = {name: Listed(name, report.parameters, report.inputs) for name, report in describe_models(missing).items()}
    return [told.get(row.name, row) for row in found]


def _table(found: Sequence[Listed]) -> str:
    columns = (
        Column(heading="model", cells=tuple(row.name for row in found), left=True),
        Column(
            heading="parameters", cells=tuple("-" if row.parameters is None else f"{row.parameters:,}" for row in found)
        ),
        Column(heading="one sample", cells=tuple(row.inputs or "-" for row in found), left=True, importance=1),
    )
    layout = lay_out(columns, width=_WIDTH)
    return "\n".join(line[2:] for line in (*layout.headings, *layout.rows))
