"""Values beside the trace: known ones are what a CPU computes, unknown ones lead to the most that can happen."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sweeper.trial import Broken, Fit
from sweeper.worker import trial
from sweeper.worker.devices.simulated import SimulatedDevice
from sweeper.worker.tracing.values import MOST_BYTES, Values, assume
from tests.builders import a_spec


@contextmanager
def tracing() -> Iterator[Values]:
    device = SimulatedDevice("rtx4060", record=True)
    device.start_over(with_values=True)
    assert device._values is not None
    with device.session(), device.phase("forward", 0):
        yield device._values


def agree(known: torch.Tensor | None, true: torch.Tensor) -> bool:
    return known is not None and known.dtype == true.dtype and torch.equal(known, true)


# Each takes what there is so far and adds to it, or writes into it: the same program on any device.
Step = Callable[[list[torch.Tensor], str], None]


def adds(work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Step:
    return lambda held, device: held.append(work(held[-1], held[len(held) // 2]))


def writes(work: Callable[[torch.Tensor, torch.Tensor], Any]) -> Step:
    def step(held: list[torch.Tensor], device: str) -> None:
        work(held[-1], held[len(held) // 2].clone())  # an operator may not read what it writes

    return step


STEPS: dict[str, Step] = {
    "arange": lambda held, device: held.append(torch.arange(6, device=device).view(2, 3)),
    "full": lambda held, device: held.append(torch.full((2, 3), 7, device=device)),
    "literal": lambda held, device: held.append(torch.tensor([[5, 0, 2], [1, 9, 4]], device=device)),
    "zeros_like": adds(lambda a, b: torch.zeros_like(a)),
    "new_full": adds(lambda a, b: a.new_full((2, 3), 4)),
    "copied": lambda held, device: held.append(torch.tensor([[3, 1, 4], [1, 5, 9]]).to(device)),
    "add": adds(lambda a, b: a + b),
    "mul": adds(lambda a, b: a * b % 11),
    "where": adds(lambda a, b: torch.where(a > b, a, b)),
    "sort": adds(lambda a, b: a.sort(dim=1, descending=True)[1]),
    "max": adds(lambda a, b: a.max(dim=0, keepdim=True)[1].repeat(2, 1)),
    "turned": adds(lambda a, b: a.t().contiguous().view(2, 3)),
    "row": writes(lambda a, b: a[0].add_(1)),
    "column": writes(lambda a, b: a[:, 1].copy_(b[:, 2])),
    "fill": writes(lambda a, b: a[1, 1:].fill_(8)),
    "zero": writes(lambda a, b: a.zero_()),
    "masked": writes(lambda a, b: a.masked_fill_(b > 3, 2)),
    "set where": writes(lambda a, b: a.__setitem__(b > 2, 6)),
    "set rows": writes(lambda a, b: a.__setitem__(torch.tensor([1, 0], device=a.device), b)),
    "placed": adds(lambda a, b: torch.cat([a[a > 1], b.flatten()])[:6].view(2, 3)),
    "met": adds(lambda a, b: a + int((b > 1).sum())),
}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=12))
@example(["max", "placed"])  # picks nothing
def test_a_program_on_known_values_knows_what_the_cpu_computes(names: list[str]) -> None:
    true, traced = [torch.arange(6).view(2, 3)], []
    for name in names:
        STEPS[name](true, "cpu")
    with tracing() as values:
        traced.append(torch.arange(6, device="meta").view(2, 3))
        for name in names:
            STEPS[name](traced, "meta")
        assert all(tensor.is_meta for tensor in traced)
        assert all(agree(values.of(known), value) for known, value in zip(traced, true, strict=True))
        assert not values.assumed


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=10), st.data())
def test_what_meets_an_unknown_value_is_never_known_wrongly(names: list[str], data: st.DataObject) -> None:
    """The unknown tensor is random, so what is still known afterwards cannot depend on it."""
    place = data.draw(st.integers(0, len(names)))
    for unknown in (torch.zeros(2, 3, dtype=torch.int64), torch.full((2, 3), 3)):
        true = [torch.arange(6).view(2, 3)]
        with tracing() as values:
            traced = [torch.arange(6, device="meta").view(2, 3)]
            for number, name in enumerate(names):
                if number == place:
                    true.append(unknown)
                    traced.append(torch.empty(2, 3, dtype=torch.int64, device="meta"))
                if name in ("placed", "met", "sort", "max"):
                    continue  # these are decided or assumed
                STEPS[name](true, "cpu")
                STEPS[name](traced, "meta")
            for tensor, value in zip(traced, true, strict=True):
                known = values.of(tensor)
                assert known is None or agree(known, value)


MASK = [True, False, True, True]
DECIDED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "nonzero": lambda x, mask: mask.nonzero(),
    "where": lambda x, mask: torch.where(mask)[0],
    "index": lambda x, mask: x[mask],
    "index of two axes": lambda x, mask: x.view(2, 2)[mask.view(2, 2)],
    "masked_select": lambda x, mask: x.masked_select(mask),
    "unique": lambda x, mask: torch.unique(x % 2),
    "repeat": lambda x, mask: torch.repeat_interleave(x, x),
    "set": lambda x, mask: x.clone().index_put_((mask,), x[:3]),
    "item": lambda x, mask: x[:2].sum().item(),
    "bool": lambda x, mask: bool(mask.all()),
    "tolist": lambda x, mask: x.tolist(),
    "equal": lambda x, mask: torch.equal(x, x.flip(0)),
    "as an index": lambda x, mask: [10, 20, 30, 40][x[2]],
    "cpu": lambda x, mask: x.cpu(),
}


@pytest.mark.parametrize("name", DECIDED)
def test_what_known_values_decide_is_decided_as_on_the_cpu(name: str) -> None:
    true = DECIDED[name](torch.arange(4), torch.tensor(MASK))
    with tracing() as values:
        found = DECIDED[name](torch.arange(4, device="meta"), torch.tensor(MASK, device="meta"))
        if not isinstance(true, torch.Tensor):
            assert found == true
        else:
            assert found.shape == true.shape
            assert agree(values.of(found), true)
        assert not values.assumed


@pytest.mark.parametrize(
    ("work", "shape"),
    [
        (lambda x: (x > 0).nonzero(), (6, 2)),
        (lambda x: x[x > 0], (6,)),
        (lambda x: x.masked_select(x > 0), (6,)),
        (lambda x: torch.unique(x), (6,)),
        (lambda x: torch.ops.torchvision.nms(x.new_empty(6, 4), x.flatten(), 0.5), (6,)),
    ],
)
def test_what_unknown_values_decide_is_the_most_and_said(work: Callable[[Any], torch.Tensor], shape: Any) -> None:
    import torchvision  # noqa: F401  (its operators)

    with tracing() as values:
        assert work(torch.empty(2, 3, device="meta")).shape == shape
        (note,) = values.notes()
    assert note.startswith("assumed, for the most it can take: ")


def test_an_unknown_condition_holds_and_an_unknown_number_is_an_error() -> None:
    with tracing() as values:
        unknown = torch.empty(3, device="meta")
        assert bool((unknown > 0).any())
        assert len(values.assumed) == 1
        with pytest.raises(RuntimeError, match="item"):
            unknown.sum().item()
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta"):
            unknown.tolist()


def test_an_unknown_order_is_taken_to_be_there_already() -> None:
    with tracing() as values:
        order = torch.empty(3, 5, device="meta").topk(2, dim=0)[1]
        assert agree(values.of(order), torch.arange(2).view(2, 1).expand(2, 5))


def test_random_numbers_are_unknown_and_permutations_are_drawn() -> None:
    with tracing() as values:
        assert values.of(torch.rand(3, device="meta")) is None
        assert values.of(torch.zeros(3, device="meta").uniform_()) is None
        drawn = values.of(torch.randperm(9, device="meta"))
        assert drawn is not None
        assert sorted(drawn.tolist()) == list(range(9))


def test_what_is_large_is_not_computed_twice() -> None:
    with tracing() as values:
        just = torch.zeros(MOST_BYTES, dtype=torch.uint8, device="meta")
        assert values.of(just) is not None
        assert values.of(torch.zeros(MOST_BYTES + 1, dtype=torch.uint8, device="meta")) is None
        rows = torch.arange(4096, device="meta")
        assert values.of(rows[:, None] * rows) is None


def test_values_end_with_their_tensor() -> None:
    with tracing() as values:
        held = torch.arange(4, device="meta")
        view = held[1:]
        assert len(values._known) == 1
        del held
        assert agree(values.of(view), torch.arange(1, 4))
        del view
        assert not values._known


def test_an_assumption_never_replaces_what_is_known() -> None:
    with tracing() as values:
        known, unknown = torch.arange(3, device="meta"), torch.empty(3, dtype=torch.int64, device="meta")
        for tensor in (known, unknown):
            assume(tensor, torch.full((3,), 5), "all are five")
        assert agree(values.of(known), torch.arange(3))
        assert agree(values.of(unknown), torch.full((3,), 5))
        assert values.notes() == ("assumed, for the most it can take: all are five",)
    assume(torch.empty(3, device="meta"), torch.zeros(3), "outside, it does nothing")


MODELS = "tests/workers/unpredictable.py"


def test_a_step_that_values_decide_starts_again_with_them() -> None:
    fit = trial.run(a_spec(model=f"{MODELS}:keeps_its_rows", device="sim:rtx4060", batch_size=6))
    assert isinstance(fit, Fit)
    assert fit.notes == ()


def test_a_step_that_unknown_conditions_decide_says_what_was_assumed() -> None:
    fit = trial.run(a_spec(model=f"{MODELS}:drops_rows", device="sim:rtx4060", batch_size=6))
    assert isinstance(fit, Fit)
    assert fit.notes == (
        "assumed, for the most it can take: a condition on values that are not known holds everywhere",
    )


def test_a_step_that_reads_an_unknown_number_is_still_an_error() -> None:
    broken = trial.run(a_spec(model=f"{MODELS}:reads_a_value", device="sim:rtx4060"))
    assert isinstance(broken, Broken)
    assert "Tensor.item()" in broken.reason
