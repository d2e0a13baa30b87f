"""What a training costs, as it is asked: ``--price``, ``--samples`` and ``--epochs`` to a ``Schedule``.

The price can be ``list``: one from the small table in ``data/prices.json``, which has for some cards one provider's
price on demand for one GPU an hour, with the date it was read and where it was published.  Prices change and differ
between providers by several times, so nothing uses the table unless it is asked to, and what comes of it says so.
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

from sweeper import cards
from sweeper.cost import Price, Schedule, parse_price
from sweeper.errors import UsageError
from sweeper.trial import DeviceReport
from sweeper.wire import from_jsonable

__all__ = ["LIST", "SCHEMA", "CostQuestion", "ListPrice", "cost_question", "list_prices"]

LIST = "list"

# 1  first version
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPrice:
    """Of one GPU for an hour on demand; ``terms`` is what is rented, ``date`` the day it was read (ISO 8601)."""

    card: str  # as in the catalogue
    per_hour: float
    currency: str
    provider: str
    terms: str
    date: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    schema: int
    prices: tuple[ListPrice, ...]


@cache
def list_prices() -> Mapping[str, ListPrice]:
    """The table, by the catalogue's names."""
    text = (resources.files("sweeper") / "data" / "prices.json").read_text(encoding="utf-8")
    table: _Table = from_jsonable(_Table, json.loads(text))
    return MappingProxyType({price.card: price for price in table.prices})


@dataclass(frozen=True, slots=True, kw_only=True)
class CostQuestion:
    """What was asked; ``listed`` where the price is the list's, which depends on the device."""

    samples: int
    epochs: float
    price: Price | None
    listed: bool

    def check(self, device: str) -> None:
        """Raise ``UsageError`` where it can have no answer on ``device``, as far as its name tells."""
        if device.startswith("sim:"):
            raise UsageError(
                f"nothing simulated has a time, so what a training takes on {device} is not known",
                hint="leave --price, --samples and --epochs out, or measure on --device cuda",
            )
        if self.listed and device == "cpu":
            raise UsageError("list prices are of GPUs, and the device is cpu", hint="give a price: --price 0.80/h")

    def given(self) -> Schedule:
        """The schedule at the price that was given, if any was."""
        return Schedule(samples=self.samples, epochs=self.epochs, price=self.price)

    def on(self, device: DeviceReport) -> Schedule:
        """The schedule on ``device``.  Raises ``UsageError`` as ``check`` does, and where its card is not listed."""
        self.check(device.device)
        return dataclasses.replace(self.given(), price=_list_price(device) if self.listed else self.price)


def cost_question(price: str | None, samples: int | None, epochs: float | None) -> CostQuestion | None:
    """None where nothing is asked.  Raises ``UsageError`` where a number is missing or none."""
    if price is None and samples is None and epochs is None:
        return None
    if samples is None:
        given = "--price" if price is not None else "--epochs"
        raise UsageError(f"{given} needs to know how much is trained", hint="give --samples, of one epoch: 1281167")
    if samples < 1:
        raise UsageError(f"--samples {samples} is too few", hint="give 1 or more")
    if epochs is not None and not 0 < epochs < float("inf"):
        raise UsageError(f"--epochs {epochs:g} is no number of epochs", hint="give more than 0")
    listed = price is not None and price.strip().lower() == LIST
    given_price = parse_price(price) if price is not None and not listed else None
    return CostQuestion(samples=samples, epochs=1.0 if epochs is None else epochs, price=given_price, listed=listed)


def _list_price(device: DeviceReport) -> Price:
    found = list_prices().get(cards.name_for(device.label, device.total_bytes))
    if found is None:
        raise UsageError(
            f"no list price of {device.label} is known",
            hint=f"give one: --price 0.80/h; list prices are of {', '.join(sorted(list_prices()))}",
        )
    return Price(
        per_hour=found.per_hour,
        currency=found.currency,
        listed=f"list price of {device.label}, {found.provider} ({found.terms}), as of {found.date}",
    )
