"""The sizes along an axis that a model can take, asked of the model before anything is run.

The batch needs no asking.  Along another axis the model says what sizes are multiples of and where they begin; what
it does not say is decided here:

*The step.*  What the model needs: patches of 14 or 16 pixels, windows of 32.  Else 1, but for sequences 8: tensor cores
are at their best where the sides of 16-bit matrices are multiples of 8 (NVIDIA, "Matrix Multiplication Background
User's Guide", "Tensor Core Requirements"), so lengths between are seldom trained on.

*The smallest size.*  What the model takes.  Else one step; for images at least 32 pixels, which is what five halvings,
usual for networks of convolutions, make one pixel of.

*Positions.*  A model with an embedding for each position takes no longer sequence than it has positions.  Where one of
its arguments says how many, the model is built with as many as the longest sequence asked for, in every trial: built
anew for each length, the weights would grow along the axis too.

The smallest and, of inputs, the largest size are then shown to the model, so that what it refuses is refused before
there is a folder.  What is not known is whether it takes all sizes between.
"""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from sweeper import axes
from sweeper.checks import Sizes, check_range, on_grid
from sweeper.errors import UsageError
from sweeper.record import Settings
from sweeper.runner import Runner
from sweeper.trial import DescribeModel, ModelReport, Refused, TrialSpec

__all__ = ["settle", "with_positions"]

_TOKEN_STEP = 8
_LEAST_IMAGE = 32


def settle(runner: Runner, spec: TrialSpec, settings: Settings, sizes: Sizes) -> tuple[TrialSpec, Settings]:
    """``spec`` and ``settings`` of a sweep over ``sizes`` along ``settings.axis``, with what the model says of them.

    Raises ``UsageError`` where the model has no such axis, or cannot take the sizes asked for.
    """
    axis = settings.axis
    if axis == "batch":
        return spec, settings
    with tempfile.TemporaryDirectory() as scratch:
        model = _Model(runner, spec, axis, Path(scratch))
        own = model.own()
        step = _step(own, spec, axis, sizes.step)
        check_range(sizes.floor or 1, sizes.cap)
        floor = on_grid(_least(own, axis, step) if sizes.floor is None else sizes.floor, sizes.cap, step)
        top = sizes.cap // step * step
        built, argument = model.with_positions(own, top)
        model.check(built, floor, top)
    settled = dataclasses.replace(settings, floor=floor, cap=top, step=step, positions_argument=argument)
    return axes.at_size(built, axis, floor), settled


def with_positions(
    spec: TrialSpec, own: ModelReport, top: int, *, describe: Callable[[TrialSpec], ModelReport | None], flag: str
) -> tuple[TrialSpec, str | None]:
    """``spec`` with positions for ``top`` tokens, and the argument that says how many, where ``own`` has too few.

    ``describe`` asks the model, ``flag`` is what said ``top``.  Raises ``UsageError`` where no argument says how many,
    or the person has said it.
    """
    if own.positions is None or top <= own.positions:
        return spec, None
    argument = own.positions_argument
    if argument is None:
        raise UsageError(
            f"{spec.model} has {own.positions} positions: it takes at most {own.positions} tokens",
            hint=f"give {flag} {own.positions}",
        )
    if argument in spec.model_args:
        raise UsageError(
            f"--model-arg {argument}={spec.model_args[argument]} leaves no room for {top} tokens",
            hint=f"leave it out: the model is then built with as many positions as {flag}",
        )
    longer = axes.at_size(spec, f"model.{argument}", top)
    found = describe(longer)
    if found is None or found.positions is None or found.positions >= top:
        return longer, argument
    # Some keep a few of those for themselves: roberta's begin after its padding.
    return axes.at_size(spec, f"model.{argument}", 2 * top - found.positions), argument


class _Model:
    """What is asked of the model, a request in a folder of its own each time."""

    def __init__(self, runner: Runner, spec: TrialSpec, axis: str, scratch: Path) -> None:
        self._runner, self._spec, self._axis, self._scratch = runner, spec, axis, scratch
        self._asked = 0

    def own(self) -> ModelReport | None:
        """What the model says of its inputs when no size is asked for; None where it cannot be built so.

        Raises ``UsageError`` where it says that it has no such input.
        """
        if axes.model_argument(self._axis) is not None:
            return None
        found = self._describe(axes.at_size(self._spec, self._axis, None))
        # A model that says nothing of its inputs, as a factory of the user's own, is asked by trying.
        if found is None or (found.seq_len, found.image_size) == (None, None):
            return found
        if (found.seq_len if self._axis == "seq-len" else found.image_size) is None:
            raise self._no_such_input(found)
        return found

    def with_positions(self, own: ModelReport | None, top: int) -> tuple[TrialSpec, str | None]:
        """The spec with positions for ``top`` tokens, and the argument that says how many, where it has too few."""
        if self._axis != "seq-len" or own is None:
            return self._spec, None
        return with_positions(self._spec, own, top, describe=self._describe, flag="--max")

    def check(self, spec: TrialSpec, floor: int, top: int) -> None:
        """Raises ``UsageError`` where the model refuses one of these sizes, or both are one to it.

        What breaks is for its trial to tell.  The most of an argument is not tried: deep models take long to build.
        """
        least = self._describe(axes.at_size(spec, self._axis, floor))
        if axes.model_argument(self._axis) is not None or top == floor:
            return
        most = self._describe(axes.at_size(spec, self._axis, top))
        if least is not None and most is not None and least.inputs == most.inputs:
            raise self._no_such_input(least)

    def _no_such_input(self, found: ModelReport) -> UsageError:
        noun = "sequences" if self._axis == "seq-len" else "images"
        return UsageError(
            f"{self._spec.model} takes no {noun} of a size to be chosen: its input is {found.inputs}",
            hint="leave --axis out, or vary an argument of the model with --axis model.ARG",
        )

    def _describe(self, spec: TrialSpec) -> ModelReport | None:
        self._asked += 1
        response = self._runner.run(DescribeModel(spec=spec), self._scratch / str(self._asked))
        if isinstance(response, Refused):
            raise UsageError(response.message, hint=response.hint)
        return response if isinstance(response, ModelReport) else None


def _step(own: ModelReport | None, spec: TrialSpec, axis: str, asked: int | None) -> int:
    needed = None
    if own is not None:
        needed = own.token_step if axis == "seq-len" else own.image_step
    if asked is None:
        any_length = axis == "seq-len" and needed in (None, 1)
        return _TOKEN_STEP if any_length else needed or 1
    if needed and asked % needed:
        raise UsageError(
            f"{spec.model} takes multiples of {needed}, and --step {asked} is none",
            hint=f"give --step {needed}, or leave it out",
        )
    return asked


def _least(own: ModelReport | None, axis: str, step: int) -> int:
    """The smallest size when none is asked for."""
    if axis == "image-size":
        return max(_LEAST_IMAGE, (own and own.image_least) or 1)
    return step
