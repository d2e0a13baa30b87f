"""Which micro-batch keeps an effective batch, and when that is no question."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.effective_batch import Split, accumulating, split
from sweeper.errors import UsageError
from sweeper.record import Settings
from sweeper.report import words
from sweeper.report.export import to_json
from sweeper.report.text import summary
from tests.builders import BOUNDARY, a_finished_record, a_record, a_spec, an_oom

sizes = st.integers(1, 5000)


@given(target=sizes, largest=sizes)
def test_the_micro_batches_make_the_effective_batch_and_each_of_them_fits(target: int, largest: int) -> None:
    found = split(target, largest=largest, fitted=())
    assert found.micro_batch * (found.accumulate - 1) + found.last == target
    assert 1 <= found.last <= found.micro_batch <= min(largest, target)


@given(target=sizes, largest=sizes)
def test_a_smaller_last_micro_batch_is_the_price_of_not_halving_the_card(target: int, largest: int) -> None:
    found = split(target, largest=largest, fitted=())
    divisors = [size for size in range(1, min(largest, target) + 1) if target % size == 0]
    if 2 * max(divisors) >= min(largest, 2 * target):
        assert (found.micro_batch, found.last) == (max(divisors), max(divisors))
    else:
        assert found.accumulate == -(-target // largest)
        assert found.micro_batch - found.last < found.accumulate


@pytest.mark.parametrize(
    ("target", "largest", "micro", "accumulate", "last"),
    [(256, 100, 64, 4, 64), (256, 400, 256, 1, 256), (257, 100, 86, 3, 85), (1, 7, 1, 1, 1), (96, 48, 48, 2, 48)],
)
def test_known_answers(target: int, largest: int, micro: int, accumulate: int, last: int) -> None:
    found = split(target, largest=largest, fitted={micro})
    assert found == Split(target_batch=target, micro_batch=micro, accumulate=accumulate, last=last, was_run=True)


def test_trials_take_two_micro_batches_where_an_effective_batch_is_kept() -> None:
    assert accumulating(a_spec(), None, "seq-len") == a_spec()
    assert accumulating(a_spec(), 256, "batch") == a_spec(accumulate=2)


@pytest.mark.parametrize(
    ("target", "axis", "choices"),
    [(0, "batch", {}), (8, "seq-len", {}), (8, "batch", {"mode": "inference"}), (8, "batch", {"accumulate": 2})],
)
def test_accumulation_that_cannot_be_the_question_is_refused(target: int, axis: str, choices: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        accumulating(a_spec(**choices), target, axis)
    assert "--target-batch" in refused.value.message
    assert refused.value.hint


def a_kept(target: int | None) -> Any:
    return a_finished_record(settings=Settings(cap=512, margin=0.05, target_batch=target))


def test_a_report_says_the_split_and_what_was_not_run_itself(tmp_path: Any) -> None:
    record = a_kept(1000)
    assert words.effective_batch(record) == (
        "an effective batch of 1000 is 250 x 4: --batches 250 --accumulate 4 (250 was not run itself, 325 was; "
        "trials kept the gradients of one micro-batch while the next ran) (simulated)"
    )
    assert "--accumulate 4" in " ".join(summary(record, folder=tmp_path, color=False).split())
    assert to_json(record, tmp_path)["accumulation"] == {
        "target_batch": 1000, "micro_batch": 250, "accumulate": 4, "last": 250, "was_run": False,
    }  # fmt: skip
    assert "(325 ran;" in str(words.effective_batch(a_kept(2 * BOUNDARY)))
    assert "325 x 2 + 324" in str(words.effective_batch(a_kept(3 * BOUNDARY - 1)))
    assert "fits as it is" in str(words.effective_batch(a_kept(64)))


def test_nothing_is_said_where_nothing_was_asked_or_nothing_fits(tmp_path: Any) -> None:
    assert words.effective_batch(a_kept(None)) is None
    nothing = a_record((1, an_oom()), settings=Settings(cap=512, target_batch=64))
    assert words.effective_batch(nothing) is None
    assert to_json(nothing, tmp_path)["accumulation"] is None
