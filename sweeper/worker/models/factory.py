"""Models of the user's own: finds the factory, calls it with the arguments it takes, and reads what it returns.

A factory is any callable that returns one of two things:

an ``nn.Module`` with ``example_inputs(batch)``
    The loss is then ``mean_of_outputs``.
an object with ``model``, ``make_batch(batch)`` and ``loss(outputs, targets)``
    A ``Workload``, or anything of that shape, so that users need not import sweeper.  ``forward(model, inputs)``,
    ``optimizer(parameters)`` and ``train_step(model, batch, optimizer)`` may be there too; with the last, ``loss`` need
    not be.

What the user's code raises is not touched: its traceback is the report.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from sweeper.errors import UsageError
from sweeper.model_names import split_factory
from sweeper.worker.models import Workload, call_model, mean_of_outputs

__all__ = ["build", "call"]

_WHAT_TO_RETURN = (
    "return an nn.Module with a method example_inputs(batch), or an object with model, make_batch(batch) and "
    "loss(outputs, targets)"
)


def build(name: str, model_args: Mapping[str, Any], image_size: int | None) -> Workload:
    """Return the workload of ``file.py:factory`` or ``module:factory``.

    Raises ``UsageError`` when it is not there, does not take these arguments or returns something else.
    """
    place, attribute = split_factory(name)
    module = _import_file(place) if isinstance(place, Path) else _import_module(place)
    return _as_workload(call(_find(module, attribute, name), name, model_args, image_size), name)


def call(factory: Callable[..., Any], name: str, model_args: Mapping[str, Any], image_size: int | None) -> Any:
    """Return ``factory(**model_args)``, the image size among them when it is given.

    Raises ``UsageError`` naming the arguments that ``factory`` takes when these are not among them.
    """
    given = dict(model_args) if image_size is None else {**model_args, "image_size": image_size}
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a callable of C without a signature: it says itself what it takes
        return factory(**given)
    unknown = [] if _takes_any(signature) else [repr(key) for key in given if key not in signature.parameters]
    if unknown:
        raise UsageError(f"{name} takes no argument {', '.join(unknown)}", hint=_takes(signature))
    try:
        signature.bind(**given)
    except TypeError as problem:
        raise UsageError(f"{name}: {problem}", hint=_takes(signature)) from None
    return factory(**given)


def _takes_any(signature: inspect.Signature) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _takes(signature: inspect.Signature) -> str:
    names = [
        name if parameter.default is parameter.empty else f"{name} (default {parameter.default!r})"
        for name, parameter in signature.parameters.items()
        if parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    return f"it takes {', '.join(names)}" if names else "it takes no keyword arguments"


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    # As `python file.py` does it: the files beside this one can be imported.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # Under a name of its own: a model file called random.py must not take the standard library's place.
    spec = importlib.util.spec_from_file_location(f"sweeper_model_file_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file", hint="write path/to/file.py:factory")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does it
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        missing = problem.name or ""
        if name != missing and not name.startswith(missing + "."):
            raise  # the module is there; something that it imports is not
        raise UsageError(
            f"there is no module {missing}",
            hint="install it, run from the folder that holds it, or give file.py:factory",
        ) from None


def _find(module: ModuleType, attribute: str, name: str) -> Callable[..., Any]:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [key for key, value in vars(module).items() if not key.startswith("_") and _is_own(value, module)]
            hint = f"it defines {', '.join(public)}" if public else "it defines no function or class"
            raise UsageError(f"{name}: there is no {attribute} in {module.__file__ or module.__name__}", hint=hint)
        found = getattr(found, part)
    if isinstance(found, nn.Module) or not callable(found):
        raise UsageError(
            f"{name} is a {type(found).__name__}, not a function or class that makes a model",
            hint=f"write a function: def make(): ...; {_WHAT_TO_RETURN}",
        )
    return found  # type: ignore[no-any-return]


def _is_own(value: Any, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _as_workload(made: Any, name: str) -> Workload:
    if isinstance(made, nn.Module):
        example_inputs = getattr(made, "example_inputs", None)
        if not callable(example_inputs):
            raise UsageError(f"{name} returned a {type(made).__name__} without example_inputs", hint=_WHAT_TO_RETURN)
        return Workload(model=made, make_batch=lambda batch: (example_inputs(batch), None), loss=mean_of_outputs)
    model, make_batch, loss = (getattr(made, part, None) for part in ("model", "make_batch", "loss"))
    optimizer, train_step = (_own(made, part, name) for part in ("optimizer", "train_step"))
    if train_step is not None and loss is None:
        loss = mean_of_outputs
    if isinstance(model, nn.Module) and callable(make_batch) and callable(loss):
        forward = getattr(made, "forward", None) or call_model
        return Workload(
            model=model,
            make_batch=make_batch,
            loss=loss,
            forward=forward,
            optimizer=optimizer,
            train_step=train_step,
        )
    raise UsageError(f"{name} returned {_describe(made)}, which is no model", hint=_WHAT_TO_RETURN)


def _own(made: Any, part: str, name: str) -> Callable[..., Any] | None:
    """A part that need not be there.  Raises ``UsageError`` when it is there and cannot be called."""
    found = getattr(made, part, None)
    if found is not None and not callable(found):
        raise UsageError(
            f"{name}: {part} is a {type(found).__name__}, not a function",
            hint="write optimizer(parameters), which makes one, and train_step(model, batch, optimizer)",
        )
    return found


def _describe(made: Any) -> str:
    missing = [part for part in ("model", "make_batch", "loss") if not hasattr(made, part)]
    if len(missing) in (1, 2):
        return f"a {type(made).__name__} without {' or '.join(missing)}"
    return "None" if made is None else f"a {type(made).__name__}"
