"""What a training costs: the arithmetic, the words a price is given in, the list, and what is refused."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.cards import cards
from sweeper.cost import Price, Schedule, parse_price
from sweeper.errors import UsageError
from sweeper.prices import cost_question, list_prices
from tests.builders import a_device

positive = st.floats(1e-3, 1e6)


def test_the_example_of_imagenet() -> None:
    """90 epochs of 1,281,167 images at 1,000 a second are 32.03 hours."""
    cost = Schedule(samples=1_281_167, epochs=90, price=Price(per_hour=0.8)).cost(1000)
    assert cost.hours == pytest.approx(1_281_167 * 90 / 1000 / 3600)
    assert (round(cost.hours, 2), round(cost.money or 0, 2)) == (32.03, 25.62)


@given(samples=st.integers(1, 10**9), epochs=positive, speed=positive, price=positive, times=st.integers(2, 100))
def test_cost_is_proportional(samples: int, epochs: float, speed: float, price: float, times: int) -> None:
    def cost(samples: int = samples, epochs: float = epochs, speed: float = speed, price: float = price) -> float:
        money = Schedule(samples=samples, epochs=epochs, price=Price(per_hour=price)).cost(speed).money
        assert money is not None
        return money

    once = cost()
    for more in (cost(samples=samples * times), cost(epochs=epochs * times), cost(price=price * times)):
        assert more == pytest.approx(once * times)
    assert cost(speed=speed * times) == pytest.approx(once / times)
    free = Schedule(samples=samples, epochs=epochs).cost(speed)
    assert free.hours * price == pytest.approx(once)
    assert free.money is None


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_that_never_ends_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="never end"):
        Schedule(samples=1, epochs=1).cost(speed)


@pytest.mark.parametrize(
    ("text", "per_hour", "currency"),
    [
        ("0.80/h", 0.8, None),
        ("0.80", 0.8, None),
        (".8/h", 0.8, None),
        ("2/hour", 2.0, None),
        ("$0.80/h", 0.8, "USD"),
        ("€1.20", 1.2, "EUR"),
        ("0.80 EUR/h", 0.8, "EUR"),
        ("0.80eur/hr", 0.8, "EUR"),
        (" $ 0.80 USD / h ", 0.8, "USD"),
    ],
)
def test_a_price_is_read_as_people_write_it(text: str, per_hour: float, currency: str | None) -> None:
    assert parse_price(text) == Price(per_hour=per_hour, currency=currency)


@pytest.mark.parametrize(
    "text", ["", "h", "0.80/min", "0.80/day", "-0.80/h", "0/h", "0.80 EUROS/h", "1,20/h", "$0.80 EUR/h", "0.8.0", "inf"]
)
def test_what_is_no_price_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_price(text)
    assert "0.80/h" in refused.value.hint


@given(number=st.decimals("0.01", "9999", places=2), code=st.sampled_from(["EUR", "USD", "CHF"]))
def test_what_is_written_is_read_back(number: object, code: str) -> None:
    assert parse_price(f"{number} {code}/h") == Price(per_hour=float(str(number)), currency=code)


def test_every_list_price_is_of_a_card_dated_and_sourced() -> None:
    assert len(list_prices()) > 5
    for name, price in list_prices().items():
        assert name == price.card
        assert name in cards()
        assert 0 < price.per_hour < 100
        assert date(2026, 1, 1) <= date.fromisoformat(price.date)
        assert len(price.currency) == 3
        assert all((price.provider, price.terms, price.source))


@pytest.mark.parametrize("name", list_prices())
def test_a_list_price_is_found_by_what_the_driver_calls_the_card_and_named_as_such(name: str) -> None:
    card, listed = cards()[name], list_prices()[name]
    question = cost_question("list", 1000, None)
    assert question is not None
    price = question.on(a_device(device="cuda", label=card.label, total_bytes=card.total_bytes)).price
    assert price is not None
    assert (price.per_hour, price.currency) == (listed.per_hour, listed.currency)
    assert price.listed == f"list price of {card.label}, {listed.provider} ({listed.terms}), as of {listed.date}"


def test_a_price_that_was_given_is_not_the_lists() -> None:
    question = cost_question("$0.80/h", 1000, 2)
    assert question is not None
    device = a_device(device="cuda", label="NVIDIA L4", total_bytes=cards()["l4"].total_bytes)
    assert question.on(device) == Schedule(samples=1000, epochs=2, price=Price(per_hour=0.8, currency="USD"))


REFUSED = [
    ("0.80/h", None, None, "cuda", "--price needs to know how much is trained"),
    (None, None, 3.0, "cuda", "--epochs needs to know how much is trained"),
    ("0.80/h", 0, None, "cuda", "--samples 0 is too few"),
    (None, 10, 0.0, "cuda", "--epochs 0"),
    (None, 10, float("nan"), "cuda", "--epochs nan"),
    ("cheap", 10, None, "cuda", "'cheap' is no price an hour"),
    ("0.80/h", 10, None, "sim:rtx4060", "nothing simulated has a time"),
    (None, 10, None, "sim:l4", "nothing simulated has a time"),
    ("list", 10, None, "cpu", "list prices are of GPUs"),
    ("list", 10, None, "cuda", "no list price of NVIDIA GeForce RTX 4060 is known"),
]


@pytest.mark.parametrize(("price", "samples", "epochs", "device", "said"), REFUSED)
def test_what_has_no_answer_is_refused_in_one_line(
    price: str | None, samples: int | None, epochs: float | None, device: str, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        _ask(price, samples, epochs, device)
    assert said in refused.value.message
    assert len(refused.value.message.splitlines()) == len(refused.value.hint.splitlines()) == 1


def _ask(price: str | None, samples: int | None, epochs: float | None, device: str) -> Schedule:
    question = cost_question(price, samples, epochs)
    assert question is not None
    return question.on(a_device(device=device))


def test_nothing_asked_is_nothing() -> None:
    assert cost_question(None, None, None) is None
