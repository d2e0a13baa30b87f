"""``sweep cards``: the catalogue of cards that can be simulated."""

import json

import click

from sweeper import api
from sweeper.units import GIB, format_bytes
from sweeper.wire import to_jsonable

__all__ = ["cards"]


@click.command(short_help="List the cards that can be simulated.")
@click.argument("pattern", default="")
@click.option("--json", "as_json", is_flag=True, help="Print every field of every card.")
def cards(pattern: str, as_json: bool) -> None:
    """List the cards that --device sim:CARD knows, smallest first; PATTERN picks by name.

    A card with a * has the numbers that `sweep calibrate` measured.
    """
    wanted = pattern.lower()
    found = sorted(
        (c for c in api.calibrations().cards() if wanted in c.name.lower() or wanted in c.label.lower()),
        key=lambda card: (card.total_bytes, card.name),
    )
    if as_json:
        click.echo(json.dumps([to_jsonable(card) for card in found], indent=1))
        return
    width = max((len(card.name) for card in found), default=4) + 1
    label = max((len(card.label) for card in found), default=4)
    click.echo(f"{'card':<{width}}  {'name':<{label}}  {'total':>11}  {'context':>10}  {'capability':>10}  total from")
    for card in found:
        marked = f"{card.name}*" if card.calibrated else card.name
        click.echo(
            f"{marked:<{width}}  {card.label:<{label}}  {card.total_bytes / GIB:>7.2f} GiB  "
            f"{format_bytes(card.context_bytes):>10}  {card.compute_capability or '-':>10}  {card.total_source}"
        )
    if any(card.calibrated for card in found):
        click.echo("\n* calibrated: the total and the context are measured. See: sweep calibrate --list")
    count = "1 card" if len(found) == 1 else f"{len(found)} cards"
    click.echo(f"\n{count}. A card that is not here: --device sim:24GiB. Sources: sweep cards --json")
