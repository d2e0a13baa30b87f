"""Frozen dataclasses to and from JSON, strictly: an unknown key, a missing one or a wrong type is an error by name.

A value of a union of dataclasses is written with a ``"type"`` key that holds its class's name in snake case.  What
JSON cannot say is not written: infinities and NaN become null, so a field that may hold them is ``float | None``.
The standard library only: this module is read by both sides of the wall.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

__all__ = ["WireError", "from_jsonable", "to_jsonable"]

T = TypeVar("T")


class WireError(ValueError):
    """JSON that does not have the agreed shape; the message names the place."""


def to_jsonable(value: Any) -> Any:
    """Return ``value`` (dataclasses, tuples, mappings, scalars) as what ``json.dumps`` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": _tag(type(value)), **fields} if getattr(value, "TAGGED", False) else fields
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_jsonable(kind: Any, data: Any, *, where: str = "") -> Any:
    """Return ``data`` as an instance of ``kind``: a dataclass, a union, a tuple, a mapping or a scalar type.

    Raises ``WireError`` naming the place, for example ``outcome.phases[2].bytes: expected int, found 'x'``.
    """
    origin, place = get_origin(kind), where or "value"
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _union(get_args(kind), data, place)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data, where)
    if origin is typing.Literal:
        if data not in get_args(kind):
            raise WireError(f"{place}: expected one of {', '.join(map(repr, get_args(kind)))}, found {data!r}")
        return data
    if origin is tuple:
        return _tuple(get_args(kind), data, place)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            raise WireError(f"{place}: expected an object, found {data!r}")
        item_kind = get_args(kind)[1]
        return {key: from_jsonable(item_kind, item, where=f"{place}.{key}") for key, item in data.items()}
    return _scalar(kind, data, place)


def _dataclass(kind: Any, data: Any, where: str) -> Any:
    place = where or kind.__name__
    if not isinstance(data, dict):
        raise WireError(f"{place}: expected an object, found {data!r}")
    given = dict(data)
    if getattr(kind, "TAGGED", False) and given.pop("type", None) != _tag(kind):
        raise WireError(f"{place}: expected type {_tag(kind)!r}, found {data.get('type')!r}")
    hints = _hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in given:
            values[field.name] = from_jsonable(
                hints[field.name], given.pop(field.name), where=f"{where}.{field.name}" if where else field.name
            )
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise WireError(f"{place}: {field.name!r} is missing")
    if given:
        raise WireError(f"{place}: unknown key {', '.join(map(repr, sorted(given)))}")
    return kind(**values)


def _union(kinds: tuple[Any, ...], data: Any, place: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    tagged = {_tag(kind): kind for kind in kinds if getattr(kind, "TAGGED", False)}
    if tagged and isinstance(data, dict):
        tag = data.get("type")
        if tag not in tagged:
            raise WireError(f"{place}: type is {tag!r}, expected one of {', '.join(sorted(tagged))}")
        return from_jsonable(tagged[tag], data, where=place)
    problems = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return from_jsonable(kind, data, where=place)
            except WireError as problem:
                problems.append(str(problem))
    raise WireError("; ".join(problems))


def _tuple(kinds: tuple[Any, ...], data: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise WireError(f"{place}: expected a list, found {data!r}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(from_jsonable(kinds[0], item, where=f"{place}[{i}]") for i, item in enumerate(data))
    if len(kinds) != len(data):
        raise WireError(f"{place}: expected {len(kinds)} items, found {len(data)}")
    return tuple(
        from_jsonable(kind, item, where=f"{place}[{i}]") for i, (kind, item) in enumerate(zip(kinds, data, strict=True))
    )


def _scalar(kind: Any, data: Any, place: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise WireError(f"{place}: expected {kind.__name__}, found {data!r}")
    return data


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _tag(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
