"""What meta tensors cannot run is told by PyTorch's words; the line is the user's."""

import pytest

from sweeper.trial import Broken
from sweeper.untraceable import blamed_line, missing_operator, untraceable
from tests.builders import a_broken, a_spec

# The texts of torch 2.14, by what was called.
TEXTS = [
    ("RuntimeError: Tensor.item() cannot be called on meta tensors", "Tensor.item"),
    ("NotImplementedError: The register_meta function for torch.nonzero() raises unimplemented", "torch.nonzero"),
    ("NotImplementedError: aten::_unique2: attempted to run this operator with Meta tensors, but", "aten::_unique2"),
    ("TypeError: can't convert meta device type tensor to numpy. Use Tensor.cpu() to copy", "a copy to the host"),
    ("NotImplementedError: Cannot copy out of meta tensor; no data!", "a copy to the host"),
    ("RuntimeError: cannot repeat_interleave a meta tensor without output_size", "repeat_interleave"),
    ("RuntimeError: something new about a meta tensor", "an operator"),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", None),
    ("KeyError: 'metadata'", None),
]


@pytest.mark.parametrize(("text", "operator"), TEXTS)
def test_the_operator_is_named_as_pytorch_names_it(text: str, operator: str | None) -> None:
    assert missing_operator(text) == operator


def traceback(*frames: tuple[str, str]) -> str:
    lines = [
        f'  File "{file}", line {n}, in forward\n    {code}\n    ^^^^\n' for n, (file, code) in enumerate(frames, 1)
    ]
    return "Traceback (most recent call last):\n" + "".join(lines) + "RuntimeError: no\n"


TORCH, OURS = ("torch/_ops.py", "return op()"), ("sweeper/worker/trial.py", "train()")
OWN, LIBRARY = ("/home/me/model.py", "x = x[x > 0]"), ("timm/layers/mask.py", "m.nonzero()")


@pytest.mark.parametrize(
    ("frames", "blamed"),
    [
        ((OURS, TORCH, OWN, TORCH), OWN),
        ((OURS, OWN, LIBRARY, TORCH), OWN),
        ((OURS, LIBRARY, TORCH), LIBRARY),
        ((OURS, OWN, ("/home/me/layers.py", "y.item()"), TORCH, OURS), ("/home/me/layers.py", "y.item()")),
        ((OURS, TORCH), None),
        ((), None),
    ],
)
def test_the_line_to_blame_is_the_innermost_of_the_users_own(
    frames: tuple[tuple[str, str], ...], blamed: tuple[str, str] | None
) -> None:
    line = blamed_line(traceback(*frames))
    assert (line and (line.file, line.code)) == blamed
    if line is not None:
        assert line.number == frames.index((line.file, line.code)) + 1


@pytest.mark.parametrize(("text", "operator"), TEXTS)
def test_the_error_names_operator_line_and_way_out(text: str, operator: str | None) -> None:
    error = untraceable(a_spec(model="mine.py:f"), a_broken(reason=text, traceback=traceback(OURS, OWN, TORCH)))
    assert "/home/me/model.py:2 in forward: x = x[x > 0]" in error.message
    assert (operator or text) in error.message
    if operator is not None:
        assert "--device cuda" in error.hint
        assert "--device cpu" in error.hint
    assert error.exit_code == 3


def test_a_worker_that_died_is_not_the_models_fault() -> None:
    error = untraceable(a_spec(), Broken(failure="timeout", reason="ran past 600 s on a meta tensor"))
    assert "could not be traced: ran past 600 s" in error.message
