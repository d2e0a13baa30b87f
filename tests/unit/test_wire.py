"""What crosses the wall comes out as it went in, or is refused by the name of the place."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper import trial
from sweeper.trial import Fit, OutOfMemory, TrialSpec
from sweeper.wire import WireError, from_jsonable, to_jsonable

texts = st.text(max_size=8)
sizes = st.integers(min_value=0, max_value=1 << 45)


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a dataclass or a union of them, every field filled from its annotation."""
    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    return st.one_of([st.from_type(k) for k in get_args(kind)] or [st.from_type(kind)])


@given(of(trial.Request))
def test_a_request_survives_the_wall(request: trial.Request) -> None:
    assert trial.request_from_json(trial.request_to_json(request)) == request


@given(of(trial.Response))
def test_a_response_survives_the_wall(response: trial.Response) -> None:
    assert trial.response_from_json(trial.response_to_json(response)) == response


@given(of(trial.Response), st.data())
def test_an_unknown_key_is_refused_by_name(response: trial.Response, data: st.DataObject) -> None:
    parsed = json.loads(trial.response_to_json(response))
    parsed["surprise"] = 1
    with pytest.raises(WireError, match="surprise"):
        trial.response_from_json(json.dumps(parsed))


def test_a_missing_key_is_refused_by_name() -> None:
    parsed = json.loads(trial.request_to_json(TrialSpec(model="m", batch_size=3, device="cpu")))
    del parsed["batch_size"]
    with pytest.raises(WireError, match="batch_size"):
        trial.request_from_json(json.dumps(parsed))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", '{"schema": 99}', '{"schema": 1}', '{"schema":1,"type":"x"}']
)
def test_what_is_no_response_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        trial.response_from_json(text)


@dataclass(frozen=True)
class Leaf:
    TAGGED: ClassVar[bool] = True
    size: int


@dataclass(frozen=True)
class Tree:
    name: str
    leaves: tuple[Leaf, ...] = ()
    pair: tuple[int, str] = (0, "")
    named: Mapping[str, float] | None = None
    mood: Literal["up", "down"] = "up"
    truth: bool = False


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"name": 3}, "name: expected str"),
        ({"name": "a", "leaves": [{"type": "leaf", "size": "x"}]}, r"leaves\[0\].size: expected int"),
        ({"name": "a", "leaves": [{"type": "twig", "size": 1}]}, r"leaves\[0\]: expected type 'leaf'"),
        ({"name": "a", "leaves": 3}, "leaves: expected a list"),
        ({"name": "a", "pair": [1]}, "pair: expected 2 items"),
        ({"name": "a", "named": {"k": "v"}}, "named.k: expected float"),
        ({"name": "a", "mood": "sideways"}, "mood: expected one of 'up', 'down'"),
        ({"name": "a", "truth": 1}, "truth: expected bool"),
        ({"name": "a", "leaves": [{"type": "leaf", "size": True}]}, r"leaves\[0\].size: expected int"),
        ([], "Tree: expected an object"),
    ],
)
def test_an_error_names_the_place(data: Any, place: str) -> None:
    with pytest.raises(WireError, match=place):
        from_jsonable(Tree, data)


def test_numbers_that_json_cannot_say_become_null() -> None:
    assert to_jsonable([float("nan"), float("inf"), 1.5]) == [None, None, 1.5]


def test_an_integer_is_read_where_a_float_is_meant() -> None:
    tree = from_jsonable(Tree, {"name": "a", "named": {"k": 3}})
    assert tree.named == {"k": 3.0}
    assert isinstance(tree.named["k"], float)


def test_what_is_tagged_can_be_told_apart() -> None:
    tags = {to_jsonable(o)["type"] for o in (
        Fit(peak_allocated_bytes=1, peak_reserved_bytes=1, capacity_bytes=1, steps=()),
        OutOfMemory(failure="oom_device", phase="forward", step=0, message="m"),
    )}  # fmt: skip
    assert tags == {"fit", "out_of_memory"}


def test_a_breakdown_is_the_sum_of_its_kinds() -> None:
    kinds = {field.name for field in fields(trial.Breakdown)}
    assert kinds == set(trial.KINDS)
    assert trial.Breakdown(weights=3, workspace=4).total_bytes == 7
