"""What a comparison varies: names and values as a person writes them, and every combination of them.

A field is varied by the word of its option, ``precision`` or ``image-size``; an argument of the model or the optimizer
as ``model.depth`` and ``optimizer.fused``.  A value is read by the type of its field: ``on`` and ``off`` for a switch,
a whole number for a size, ``none`` for what is left to the model.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.checks import one_of
from sweeper.errors import UnknownName, UsageError
from sweeper.trial import ATTENTIONS, MODES, OPTIMIZERS, PRECISIONS, Scalar
from sweeper.units import parse_bytes

__all__ = ["FIELDS", "Varied", "changed", "check_unvaried", "combinations", "read_vary"]

Value = Any  # of one field, as the Python interface takes it
_NONE = "none"
_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class Varied:
    """One value of one field: ``word`` as it is shown and typed, ``value`` as ``sweeper.sweep`` takes it."""

    word: str
    value: Value


def _word_of(known: Sequence[str]) -> Callable[[str, object], Varied]:
    def read(field: str, given: object) -> Varied:
        word = one_of(field, str(given), known)
        return Varied(word, word)

    return read


def _switch(field: str, given: object) -> Varied:
    value = given if isinstance(given, bool) else _SWITCH.get(str(given).lower())
    if value is None:
        raise UsageError(f"{field} is on or off, not {given!r}", hint=f"--vary {field}=off,on")
    return Varied("on" if value else "off", value)


def _count(field: str, given: object) -> Varied:
    text = str(given)
    if isinstance(given, bool) or not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{field} is a whole number of 1 or more, not {given!r}", hint=f"--vary {field}=1,2,4")
    return Varied(str(int(text)), int(text))


def _count_or_none(field: str, given: object) -> Varied:
    return Varied(_NONE, None) if given is None or str(given).lower() == _NONE else _count(field, given)


def _seed(field: str, given: object) -> Varied:
    if isinstance(given, bool) or not str(given).isdecimal():
        raise UsageError(f"{field} is a whole number, not {given!r}", hint=f"--vary {field}=0,1,2")
    return Varied(str(int(str(given))), int(str(given)))


def _text(field: str, given: object) -> Varied:
    if not isinstance(given, str) or not given:
        raise UsageError(f"{given!r} is no {field}", hint=f"--vary {field}=ONE,ANOTHER")
    return Varied(given, given)


def _text_or_none(field: str, given: object) -> Varied:
    return Varied(_NONE, None) if given is None or given == _NONE else _text(field, given)


def _patterns(field: str, given: object) -> Varied:
    """One pattern on the command line; any number in Python."""
    if given in (None, _NONE):
        return Varied(_NONE, ())
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else ()
    if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise UsageError(f"{given!r} is no pattern of parameters", hint=f"--vary {field}=none,'layer1.*'")
    return Varied(" ".join(patterns), patterns)


def _size(field: str, given: object) -> Varied:
    if given is None or given == _NONE:
        return Varied(_NONE, None)
    if not isinstance(given, str):
        return _count(field, given)
    return Varied(given, parse_bytes(given))


def _argument(field: str, given: object) -> Varied:
    """As after --model-arg: JSON where it is, else text."""
    if isinstance(given, str):
        try:
            value = json.loads(given.lower() if given.lower() in ("true", "false") else given)
        except ValueError:
            value = given
        return Varied(given, value if isinstance(value, int | float | bool | str) else given)
    if not isinstance(given, int | float | bool):
        raise UsageError(f"{given!r} is no value of {field}", hint="give numbers, truth values or text")
    return Varied(str(given).lower() if isinstance(given, bool) else str(given), given)


FIELDS: Mapping[str, Callable[[str, object], Varied]] = {
    "model": _text,
    "device": _text,
    "precision": _word_of(PRECISIONS),
    "optimizer": _word_of(OPTIMIZERS),
    "mode": _word_of(MODES),
    "attention": _word_of(ATTENTIONS),
    "checkpointing": _switch,
    "channels-last": _switch,
    "compile": _switch,
    "accumulate": _count,
    "batch-size": _count,
    "image-size": _count_or_none,
    "seq-len": _count_or_none,
    "lora": _count_or_none,
    "steps": _count,
    "seed": _seed,
    "freeze": _patterns,
    "config": _text_or_none,
    "alloc-conf": _text_or_none,
    "memory-limit": _size,
}
_ARGUMENTS = {"model": "model_args", "optimizer": "optimizer_args"}


def read_vary(vary: Mapping[str, Iterable[object]]) -> dict[str, tuple[Varied, ...]]:
    """The values of each field, in the order given.

    Raises ``UnknownName`` for a field or a word that is none, ``UsageError`` for a value of another type, given twice,
    or alone.
    """
    found: dict[str, tuple[Varied, ...]] = {}
    for name, given in vary.items():
        field = name.replace("_", "-") if name.replace("_", "-") in FIELDS else name
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise UsageError(f"{field} is varied over a list, not {given!r}", hint=f'vary={{"{field}": [...]}}')
        read = FIELDS.get(field) or _argument_of(field)
        values = tuple(read(field, value) for value in given)
        if len({varied.word for varied in values}) != len(values):
            raise UsageError(f"{field} is given a value twice", hint="give each value once")
        if len(values) < 2:
            raise UsageError(f"{field} has nothing to be compared with", hint=f"--vary {field}=ONE,ANOTHER")
        if field in found:
            raise UsageError(f"{field} is varied twice", hint="give all of its values in one --vary")
        found[field] = values
    if not found:
        raise UsageError("what is to be compared?", hint="--vary precision=fp32,amp-bf16; it may be repeated")
    return found


def _argument_of(field: str) -> Callable[[str, object], Varied]:
    kind, _, name = field.partition(".")
    if kind in _ARGUMENTS and name.isidentifier():
        return _argument
    raise UnknownName(
        "choice", field, (*FIELDS, "model.depth", "optimizer.fused"), listing=f"known: {', '.join(FIELDS)}, model.ARG"
    )


def check_unvaried(vary: Mapping[str, object], options: Mapping[str, Any]) -> None:
    """Raises ``UsageError`` where ``options`` fix what is varied."""
    for field in vary:
        option, value = _option(field, options)
        if value is not None:
            raise UsageError(
                f"{option} {value} is given, and {field} is varied too", hint=f"leave {option} out, or --vary {field}"
            )


def _option(field: str, options: Mapping[str, Any]) -> tuple[str, Any]:
    kind, _, name = field.partition(".")
    if name:
        return f"--{kind}-arg {name}", (options.get(_ARGUMENTS[kind]) or {}).get(name)
    return f"--{field}", options.get(field.replace("-", "_"))


def combinations(vary: Mapping[str, tuple[Varied, ...]]) -> Iterator[dict[str, Varied]]:
    """Every combination; the first field changes slowest."""
    for values in itertools.product(*vary.values()):
        yield dict(zip(vary, values, strict=True))


def changed(options: Mapping[str, Any], combination: Mapping[str, Varied]) -> dict[str, Any]:
    """``options`` (the model among them) with the values of ``combination`` in their places."""
    found = dict(options)
    for field, varied in combination.items():
        kind, _, argument = field.partition(".")
        if argument:
            arguments: dict[str, Scalar] = dict(found.get(_ARGUMENTS[kind]) or {})
            found[_ARGUMENTS[kind]] = {**arguments, argument: varied.value}
        else:
            found[field.replace("-", "_")] = varied.value
    return found
