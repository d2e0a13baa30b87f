"""Laws from a scripted worker: few traces where there is a law, each size by itself where there is none."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.errors import Untraceable
from sweeper.laws import LAW_STEP, BatchLaw, LawsBySize, law_sizes, traces_along
from sweeper.polynomial import QuadraticTrace
from sweeper.predicting import EachSize, StepTracer
from sweeper.trace import Trace
from sweeper.trace_cache import TraceCache
from sweeper.trial import Request, Response, TakeTraces, Traced, TrialSpec
from sweeper.units import KIB, MIB
from tests.builders import a_broken, a_spec
from tests.traces import a_trace

Step = Callable[[int, int], Trace]  # of a batch and a length

SPEC = a_spec(model="tiny-transformer", batch_size=3)


def attention(batch: int, length: int) -> Trace:
    """Activations that grow with the length, scores that grow with its square."""
    return a_trace(batch, hidden=4 * KIB * length + 4 * length * length)


def padded(batch: int, length: int) -> Trace:
    return a_trace(batch, hidden=4 * KIB * (-(-length // 128) * 128))


def another_kernel(batch: int, length: int) -> Trace:
    """From 1,000 on it frees in another order."""
    trace = attention(batch, length)
    return dataclasses.replace(trace, events=(0, 1, 2, ~1, ~2)) if length >= 1000 else trace


def jumps(batch: int, length: int) -> Trace:
    """On no line, over neither."""
    return a_trace(batch, hidden=MIB * (-(-batch * length // 1500)))


def one_apart(batch: int, length: int) -> Trace:
    """A batch of 1 is spared a copy."""
    trace = attention(batch, length)
    if batch > 1:
        return trace
    return dataclasses.replace(trace, events=(0, 1, ~1), sizes=trace.sizes[:2], labels_of=(0, 1))


class TracingRunner:
    """Answers ``TakeTraces`` along any axis by ``step``; ``taken`` is (batch, length) of each."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.taken: list[tuple[int, int]] = []

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        assert isinstance(request, TakeTraces)
        folder.mkdir(parents=True, exist_ok=True)
        for size in request.sizes:
            batch, length = self._place(request.spec, request.axis, size)
            if length == 0:
                return a_broken(reason="no such length")
            self.taken.append((batch, length))
            (folder / str(size)).write_text(self._step(batch, length).to_json())
        return Traced(files=tuple(map(str, request.sizes)))

    @staticmethod
    def _place(spec: TrialSpec, axis: str, size: int) -> tuple[int, int]:
        return (spec.batch_size, size) if axis == "seq-len" else (size, spec.seq_len or 0)

    def close(self) -> None:
        """Nothing runs."""


def laws_of(step: Step, sizes: range, tmp_path: Path) -> tuple[LawsBySize, TracingRunner]:
    runner = TracingRunner(step)
    return LawsBySize(StepTracer(runner, tmp_path), SPEC, "8.9", "seq-len", sizes), runner


@pytest.mark.parametrize("step", [attention, padded, another_kernel, jumps, one_apart])
@pytest.mark.parametrize("sizes", [range(128, 4097, 128), range(32, 1025, 32), range(1000, 1601, 200)])
def test_whatever_the_job_is_the_traces_are_its_own(step: Step, sizes: range, tmp_path: Path) -> None:
    laws, _ = laws_of(step, sizes, tmp_path)
    for size in sizes:
        found = laws.at(size)
        for batch in (1, 5, 64):
            assert found.at(batch) == step(batch, size)


@pytest.mark.parametrize("step", [attention, padded])
@pytest.mark.parametrize(("grid", "laws_needed"), [(128, 1), (256, 1), (64, 2), (32, 4)])
def test_one_law_for_each_remainder_of_eight_traces(step: Step, grid: int, laws_needed: int, tmp_path: Path) -> None:
    laws, runner = laws_of(step, range(grid, 33 * grid, grid), tmp_path)
    for size in range(grid, 33 * grid, grid):
        assert isinstance(laws.at(size), BatchLaw)
    assert len(runner.taken) == len(set(runner.taken)) == 8 * laws_needed
    assert laws.notes == ()


def test_a_batch_of_1_takes_five_traces_more_and_only_where_it_is_asked_for(tmp_path: Path) -> None:
    laws, runner = laws_of(one_apart, range(128, 4097, 128), tmp_path)
    for size in range(128, 4097, 128):
        assert laws.at(size).at(2) == one_apart(2, size)
    assert len(runner.taken) == 8
    for size in range(128, 4097, 128):
        assert laws.at(size).at(1) == one_apart(1, size)
    assert len(runner.taken) == 8 + 5


def test_where_batch_1_does_not_run_it_is_as_the_others_and_that_is_said(tmp_path: Path) -> None:
    class Breaks(TracingRunner):
        def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
            assert isinstance(request, TakeTraces)
            return a_broken(reason="one value") if request.spec.batch_size == 1 else super().run(request, folder)

    laws = LawsBySize(StepTracer(Breaks(attention), tmp_path), SPEC, "8.9", "seq-len", range(128, 4097, 128))
    assert laws.at(256).at(1) == attention(1, 256)
    (note,) = laws.notes
    assert "batch 1 does not run" in note
    assert "one value" in note


def test_the_sizes_a_law_is_held_against_are_no_nodes_and_their_batch_is_none_of_its(tmp_path: Path) -> None:
    laws, runner = laws_of(attention, range(128, 4097, 128), tmp_path)
    laws.at(128)
    nodes, others = runner.taken[:6], runner.taken[6:]
    assert {128, 4096} <= {length for _, length in nodes}
    assert not {length for _, length in nodes} & {length for _, length in others}
    assert not {batch for batch, _ in nodes} & {batch for batch, _ in others}


def test_where_a_kernel_changes_on_the_way_each_length_has_its_own_law_and_that_is_said(tmp_path: Path) -> None:
    laws, runner = laws_of(another_kernel, range(128, 4097, 128), tmp_path)
    assert all(isinstance(laws.at(size), BatchLaw) for size in (128, 1024, 4096))
    assert len(runner.taken) == 6 + 3 * 3
    (note,) = laws.notes
    assert "no polynomial of the sequence length, so each sequence length was traced by itself" in note
    assert "event 3" in note


def test_too_few_lengths_of_a_remainder_have_a_law_each(tmp_path: Path) -> None:
    laws, runner = laws_of(attention, range(128, 513, 128), tmp_path)
    for size in range(128, 513, 128):
        laws.at(size)
    assert len(runner.taken) == 3 * 4
    assert laws.notes == ()


def test_where_nothing_holds_each_batch_is_traced_when_it_is_asked_for(tmp_path: Path) -> None:
    laws, runner = laws_of(jumps, range(128, 1025, 128), tmp_path)
    found = laws.at(256)
    assert isinstance(found, EachSize)
    before = len(runner.taken)
    found.at(7)
    found.at(7)
    assert len(runner.taken) == before + 1
    assert any("not affine in the batch, so each batch was traced by itself" in note for note in laws.notes)


def test_five_sizes_are_chosen_from_both_ends_the_middle_and_between() -> None:
    for number in range(5, 50):
        chosen = law_sizes(range(100, 100 + number))
        assert len(set(chosen)) == 5
        low, middle, high, *others = chosen
        assert (low, high) == (100, 99 + number)
        assert all(low < size < high and size != middle for size in others)
    assert [law_sizes(range(number)) for number in range(5)] == [()] * 5


@pytest.mark.parametrize("axis", LAW_STEP)
def test_along_an_axis_a_law_takes_five_traces_at_the_jobs_own_batch(axis: str, tmp_path: Path) -> None:
    runner = TracingRunner(attention)
    runner._place = lambda spec, axis, size: (spec.batch_size, size)  # type: ignore[method-assign]
    sizes = range(128, 2049, LAW_STEP[axis])
    law = traces_along(StepTracer(runner, tmp_path), SPEC, "8.9", axis, sizes)
    assert isinstance(law, QuadraticTrace)
    assert [batch for batch, _ in runner.taken] == [3] * 5
    assert [law.at(size) for size in sizes] == [attention(3, size) for size in sizes]


@pytest.mark.parametrize(
    ("axis", "sizes", "step", "traced"),
    [
        ("seq-len", range(128, 2049, 128), another_kernel, 5),
        ("seq-len", range(64, 2049, 64), attention, 0),
        ("seq-len", range(128, 513, 128), attention, 0),
        ("model.depth", range(128, 2049, 128), attention, 0),
    ],
)
def test_along_an_axis_without_a_law_a_size_is_traced_when_it_is_asked_for(
    axis: str, sizes: range, step: Step, traced: int, tmp_path: Path
) -> None:
    runner = TracingRunner(step)
    runner._place = lambda spec, axis, size: (spec.batch_size, size)  # type: ignore[method-assign]
    found = traces_along(StepTracer(runner, tmp_path), SPEC, "8.9", axis, sizes)
    assert isinstance(found, EachSize)
    assert len(runner.taken) == traced
    asked = {sizes[0], sizes[1], sizes[-1]}
    assert all(found.at(size) == step(3, size) for size in [*asked, *asked])
    assert len(runner.taken) == len(set(runner.taken)) <= traced + len(asked)
    assert (found.why is not None) == (traced > 0)


def test_traces_along_an_axis_are_kept_as_those_of_a_batch_are(tmp_path: Path) -> None:
    cache = TraceCache(tmp_path / "cache")
    for expected in (2, 0):
        runner = TracingRunner(attention)
        tracer = StepTracer(runner, tmp_path / "trace", cache=cache)
        taken = tracer.traces(SPEC, "8.9", (128, 256), axis="seq-len")
        assert taken == (attention(3, 128), attention(3, 256))
        assert len(runner.taken) == expected
    at_256 = dataclasses.replace(SPEC, seq_len=256)
    assert StepTracer(runner, tmp_path / "trace", cache=cache).traces(at_256, "8.9", (3,)) == (attention(3, 256),)
    assert runner.taken == []


def test_a_length_that_cannot_be_traced_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Untraceable, match="no such length"):
        StepTracer(TracingRunner(attention), tmp_path).traces(SPEC, "8.9", (0,), axis="seq-len")
