"""``sweep cards``: the catalogue of cards that can be simulated."""

import json

import click

from sweeper import cards as catalogue
from sweeper.units import GIB, format_bytes
from sweeper.wire import to_jsonable

__all__ = ["cards"]


@click.command(short_help="List the cards that can be simulated.")
@click.argument("pattern", default="")
@click.option("--json", "as_json", is_flag=True, help="Print every field of every card.")
def cards(pattern: str, as_json: bool) -> None:
    """List the cards that --device sim:CARD knows, smallest first; PATTERN picks by name."""
    wanted = pattern.lower()
    found = sorted(
        (c for c in catalogue.cards().values() if wanted in c.name.lower() or wanted in c.label.lower()),
        key=lambda card: (card.total_bytes, card.name),
    )
    if as_json:
        click.echo(json.dumps([to_jsonable(card) for card in found], indent=1))
        return
    width = max((len(card.name) for card in found), default=4)
    label = max((len(card.label) for card in found), default=4)
    click.echo(f"{'card':<{width}}  {'name':<{label}}  {'total':>11}  {'context':>10}  {'capability':>10}  total from")
    for card in found:
        click.echo(
            f"{card.name:<{width}}  {card.label:<{label}}  {card.total_bytes / GIB:>7.2f} GiB  "
            f"{format_bytes(card.context_bytes):>10}  {card.compute_capability or '-':>10}  {card.total_source}"
        )
    click.echo(f"\n{len(found)} cards. A card that is not here: --device sim:24GiB. Sources: sweep cards --json")
