"""``sweep models``: the models that can be named."""

import click

from sweeper.model_names import known_models

__all__ = ["models"]


@click.command(short_help="List the models that have a name.")
@click.argument("pattern", default="")
def models(pattern: str) -> None:
    """List the models that --model knows by name; PATTERN picks by part of the name."""
    found = [name for name in known_models() if pattern.lower() in name]
    for name in found:
        click.echo(name)
    count = "1 model" if len(found) == 1 else f"{len(found)} models"
    click.echo(f"\n{count}. Your own: --model path/to/file.py:factory or package.module:factory", err=True)
