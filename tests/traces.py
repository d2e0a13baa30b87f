"""Traces for tests: a small one by hand, any that a step could make, and the golden pair taken from a real model."""

from pathlib import Path

from hypothesis import strategies as st

from sweeper.trace import Label, Mark, Trace
from sweeper.units import MIB

__all__ = ["GOLDEN", "HIDDEN", "INPUTS", "LABELS", "WEIGHTS", "a_trace", "golden", "traces"]

# The folder of the golden traces, by schema.
GOLDEN = {int(path.name[7:]): path for path in sorted((Path(__file__).parent / "data" / "trace").glob("schema-*"))}

WEIGHTS = Label("to", "fc", "setup", "weights")
INPUTS = Label("to", "", "inputs", "inputs")
HIDDEN = Label("addmm", "fc", "forward", "activations")
LABELS = (WEIGHTS, INPUTS, HIDDEN)


def a_trace(batch: int = 4, *, hidden: int = 3 * MIB, weights: int = 5 * MIB) -> Trace:
    """Weights that stay, inputs and an activation that go."""
    return Trace(
        batch_size=batch,
        events=(0, 1, 2, ~2, ~1),
        sizes=(weights, 1000 * batch, hidden * batch),
        labels=LABELS,
        labels_of=(0, 1, 2),
        marks=(Mark(0, "setup", 0), Mark(1, "inputs", 0), Mark(2, "forward", 0)),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any order of allocations and frees that a step could make."""
    events: list[int] = []
    sizes: list[int] = []
    alive: list[int] = []
    for _ in range(draw(st.integers(0, 30))):
        chosen: int = draw(st.integers(-len(alive) - 1, len(alive) - 1))
        if chosen >= 0:
            events.append(~alive.pop(chosen))
        else:
            events.append(len(sizes))
            alive.append(len(sizes))
            sizes.append(draw(st.integers(1, 30 * MIB)))
    labels_of = tuple(draw(st.integers(0, len(LABELS) - 1)) for _ in sizes)
    empties = tuple(sorted(draw(st.sets(st.integers(0, len(events)), max_size=3))))
    return Trace(
        batch_size=1, events=tuple(events), sizes=tuple(sizes), labels=LABELS, labels_of=labels_of, empties=empties
    )


def golden(batch: int, schema: int = 1) -> Trace:
    """small-cnn's step at ``batch``, as ``tests.data.trace.make_golden`` had it traced."""
    return Trace.from_json((GOLDEN[schema] / f"small-cnn-b{batch}.json").read_text(encoding="utf-8"))
