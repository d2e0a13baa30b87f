"""What a whole training takes at a measured speed: hours, and money at a price an hour.

    hours = samples x epochs / samples a second / 3600

Time that is not the steps' is left out: loading that the steps wait for, validation, checkpoints, a first epoch's warm
caches.  So is what a provider rounds up to.
"""

import re
from dataclasses import dataclass

from sweeper.errors import UsageError

__all__ = ["Cost", "Price", "Schedule", "parse_price"]

_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
_PRICE = re.compile(
    r"(?P<sign>[$€£¥])?\s*(?P<number>\d+(?:\.\d+)?|\.\d+)\s*(?P<code>[A-Za-z]{3})?\s*(?:/\s*(?:h|hr|hour))?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Of one device for an hour.  ``currency`` is an ISO 4217 code, None where none was given.

    ``listed`` says, of a list price, of which card, whose it is and when it was so; None of a price that was given.
    """

    per_hour: float
    currency: str | None = None
    listed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """``money`` is in the price's currency; None without a price."""

    hours: float
    money: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A whole training: ``samples`` in an epoch, ``epochs`` of them, on one device at ``price``."""

    samples: int
    epochs: float
    price: Price | None = None

    def cost(self, samples_per_second: float) -> Cost:
        """Raises ``ValueError`` for a speed that is not above 0."""
        if not samples_per_second > 0:
            raise ValueError(f"{samples_per_second} samples a second never end")
        hours = self.samples * self.epochs / samples_per_second / 3600
        return Cost(hours=hours, money=None if self.price is None else hours * self.price.per_hour)


def parse_price(text: str) -> Price:
    """Return what ``0.80/h``, ``0.80``, ``$0.80/h`` or ``0.80 EUR/h`` names; ``UsageError`` for anything else."""
    match = _PRICE.fullmatch(text.strip())
    hint = "write it as 0.80/h, $0.80/h or 0.80 EUR/h; or `list`, for a list price"
    if match is None:
        raise UsageError(f"{text!r} is no price an hour", hint=hint)
    sign, code = _SIGNS.get(match["sign"] or ""), match["code"] and match["code"].upper()
    if sign and code and sign != code:
        raise UsageError(f"{text!r} names two currencies, {sign} and {code}", hint=hint)
    if not (number := float(match["number"])):
        raise UsageError(f"{text!r}: a price is more than 0", hint=hint)
    return Price(per_hour=number, currency=sign or code)
