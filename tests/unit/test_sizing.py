"""What a model says of its sizes becomes the grid of a sweep; what it cannot take is refused before anything runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.checks import Sizes, check_not_given, sizes_of
from sweeper.errors import UsageError
from sweeper.record import Settings
from sweeper.sizing import settle
from sweeper.trial import DescribeModel, ModelReport, Refused, Request, Response, TrialSpec
from tests.builders import a_broken, a_spec

Model = Callable[[TrialSpec], Response]


class ModelsOnly:
    """A runner that describes models, and remembers which it was asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.asked: list[TrialSpec] = []

    def run(self, request: Request, folder: Path, *, timeout_s: float | None = None) -> Response:
        assert isinstance(request, DescribeModel)
        self.asked.append(request.spec)
        return self._model(request.spec)

    def close(self) -> None:
        """Nothing runs."""


def images(**says: Any) -> Model:
    """A model of images, 224 pixels a side unless told."""

    def describe(spec: TrialSpec) -> Response:
        size = spec.image_size or 224
        return ModelReport(parameters=1, trainable=1, inputs=f"3 x {size} x {size}", image_size=size, **says)

    return describe


def sequences(*, positions: int | None = None, keeps: int = 0, argument: str | None = "positions") -> Model:
    """A model of sequences that keeps some of the positions it is given to itself, and refuses longer sequences."""

    def describe(spec: TrialSpec) -> Response:
        length, has = spec.seq_len or 8, positions
        if has is not None:
            has = int(spec.model_args.get("positions", has + keeps)) - keeps
            if length > has:
                return Refused(message=f"{has} positions", hint="fewer")
        return ModelReport(
            parameters=1, trainable=1, inputs=f"{length}", seq_len=length, positions=has, positions_argument=argument
        )

    return describe


def _none_of(size: int) -> Model:
    return lambda spec: Refused(message="too big", hint="less") if spec.image_size == size else images()(spec)


def settled(
    model: Model,
    axis: str,
    *,
    most: int,
    least: int | None = None,
    step: int | None = None,
    spec: TrialSpec | None = None,
) -> tuple[TrialSpec, Settings]:
    sizes = sizes_of(axis, min_batch=1, max_batch=512, batches=(), min_size=least, max_size=most, step=step)
    return settle(ModelsOnly(model), spec or a_spec(), Settings(cap=sizes.cap, axis=axis), sizes)


def grid(settings: Settings) -> tuple[int, int, int]:
    return settings.floor, settings.cap, settings.step


def test_the_batch_is_not_asked_about() -> None:
    asked = ModelsOnly(images())
    spec, settings = a_spec(), Settings(cap=512)
    assert settle(asked, spec, settings, Sizes(floor=1, cap=512)) == (spec, settings)
    assert asked.asked == []


@pytest.mark.parametrize(
    ("says", "given", "found"),
    [
        ({}, {"most": 100}, (32, 100, 1)),
        ({"image_least": 75}, {"most": 100}, (75, 100, 1)),
        ({"image_step": 14}, {"most": 100}, (42, 98, 14)),
        ({"image_step": 14}, {"most": 100, "step": 28}, (56, 84, 28)),
        ({"image_step": 14, "image_least": 75}, {"most": 100}, (84, 98, 14)),
        ({"image_step": 14}, {"most": 100, "least": 1}, (14, 98, 14)),
        ({}, {"most": 64, "least": 64}, (64, 64, 1)),
    ],
)
def test_images_lie_on_the_models_grid_from_its_least(
    says: dict[str, int], given: dict[str, Any], found: tuple[int, int, int]
) -> None:
    spec, settings = settled(images(**says), "image-size", **given)
    assert grid(settings) == found
    assert spec.image_size == found[0]


@pytest.mark.parametrize(
    ("given", "found"), [({}, (8, 96, 8)), ({"step": 1}, (1, 100, 1)), ({"step": 30}, (30, 90, 30))]
)
def test_sequences_go_in_steps_of_eight_unless_told(given: dict[str, Any], found: tuple[int, int, int]) -> None:
    assert grid(settled(sequences(), "seq-len", most=100, **given)[1]) == found


@pytest.mark.parametrize("keeps", [0, 2])
def test_a_model_gets_positions_for_the_longest_sequence_once(keeps: int) -> None:
    spec, settings = settled(sequences(positions=64, keeps=keeps), "seq-len", most=1000)
    assert spec.model_args == {"positions": 1000 + keeps}
    assert settings.positions_argument == "positions"
    spec, settings = settled(sequences(positions=64, keeps=keeps), "seq-len", most=64)
    assert (spec.model_args, settings.positions_argument) == ({}, None)


@pytest.mark.parametrize(
    ("model", "axis", "given", "message"),
    [
        (images(), "seq-len", {}, "takes no sequences"),
        (sequences(), "image-size", {}, "takes no images"),
        (lambda spec: ModelReport(parameters=1, trainable=1, inputs="784"), "image-size", {}, "takes no images"),
        (lambda spec: Refused(message="no such argument", hint="none"), "model.depth", {}, "no such argument"),
        (images(image_step=14), "image-size", {"step": 8}, "multiples of 14"),
        (images(image_least=2000), "image-size", {}, "smallest size is 2000, above the largest, 1000"),
        (images(), "image-size", {"least": 1001}, "--min 1001 is above --max 1000"),
        (sequences(), "seq-len", {"step": 1001}, "smallest size is 1001"),
        (sequences(positions=64, argument=None), "seq-len", {}, "has 64 positions"),
        (_none_of(1000), "image-size", {}, "too big"),
    ],
)  # fmt: skip
def test_what_the_model_cannot_take_is_refused(model: Model, axis: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settled(model, axis, most=1000, **given)


def test_positions_that_were_asked_for_are_left_as_they_are() -> None:
    few, many = (a_spec(model_args={"positions": count}) for count in (512, 1000))
    with pytest.raises(UsageError, match="positions=512 leaves no room for 1000 tokens"):
        settled(sequences(positions=64), "seq-len", most=1000, spec=few)
    assert settled(sequences(positions=64), "seq-len", most=1000, spec=many)[0].model_args == {"positions": 1000}


def test_a_model_that_breaks_when_asked_is_left_to_its_trial() -> None:
    spec, settings = settled(lambda spec: a_broken(), "model.depth", most=9)
    assert (spec.model_args, grid(settings)) == ({"depth": 1}, (1, 9, 1))


# -- by the words alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "given", "message"),
    [
        ("seq-len", {}, "how far along seq-len"),
        ("seq-len", {"max_size": 64, "batches": (1, 2)}, "--batches lists batches"),
        ("seq-len", {"max_size": 64, "max_batch": 64}, "bound the batch"),
        ("seq-len", {"max_size": 64, "min_size": 0}, "1 or more"),
        ("batch", {"max_size": 64, "max_batch": 64}, "--max and --max-batch say the same"),
        ("batch", {"min_size": 2, "min_batch": 4}, "--min and --min-batch say the same"),
        ("batch", {"batches": (1, 2), "step": 8}, "--step says nothing"),
        ("batch", {"step": 0}, "--step 0"),
        ("batch", {"step": 1000}, "no multiple of 1000"),
        ("model.", {"max_size": 64}, "model."),
        ("depth", {"max_size": 64}, "depth"),
    ],
)
def test_words_that_go_nowhere_are_refused(axis: str, given: dict[str, Any], message: str) -> None:
    words: dict[str, Any] = {"min_batch": 1, "max_batch": 512, "batches": (), "min_size": None, "max_size": None}
    words["step"] = None
    with pytest.raises(UsageError, match=message):
        sizes_of(axis, **{**words, **given})


def test_a_batch_in_steps_begins_with_one() -> None:
    found = sizes_of("batch", min_batch=1, max_batch=100, batches=(), min_size=None, max_size=None, step=8)
    assert (found.floor, found.cap, found.step) == (8, 100, 8)


@pytest.mark.parametrize(
    ("axis", "fixed"),
    [
        ("batch", {"batch_size": 4}),
        ("seq-len", {"seq_len": 4}),
        ("image-size", {"image_size": 4}),
        ("model.depth", {"model_args": {"depth": 4}}),
        ("model.kind", {"model_args": {"kind": "deep"}}),
    ],
)
def test_a_size_that_is_fixed_is_no_axis(axis: str, fixed: dict[str, Any]) -> None:
    check_not_given(a_spec(), axis)
    with pytest.raises(UsageError):
        check_not_given(a_spec(**fixed), axis)
