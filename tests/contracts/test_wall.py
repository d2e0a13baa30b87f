"""The wall between driver and worker, and the floors: imports point down or stay on their side."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sweeper

PACKAGE = Path(sweeper.__file__).parent

# Lower floors first; a module may import what is on its own floor or below.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"units", "errors", "wire", "cards", "trial", "host_memory", "axes"}),
    frozenset(
        {
            "allocator",
            "allocator_conf",
            "belief",
            "calibration",
            "curve",
            "failures",
            "failure_texts",
            "history",
            "model_names",
            "prediction",
            "probes",
            "recommend",
            "search",
            "snapshot",
            "trace",
            "record",
            "untraceable",
        }
    ),
    frozenset({"accuracy", "calibrations", "checks", "choices", "journal", "runner", "trace_cache"}),
    frozenset({"calibrating", "predicting", "seeding", "sweeping"}),
    frozenset({"report", "drawing", "api"}),
    frozenset({"cli", "__main__"}),
)
# What the worker shares with the driver: the vocabulary, and what is pure.
SHARED = FLOORS[0] | {
    "allocator",
    "allocator_conf",
    "calibration",
    "choices",
    "failures",
    "model_names",
    "trace",
    "untraceable",
}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that ``path`` imports anywhere in it, also inside functions and for type checking."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def our_rooms(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("sweeper.")} - {"__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down_or_stay_on_their_side(path: Path) -> None:
    if room(path) == "worker":
        assert our_rooms(path) - {"worker"} <= SHARED
        return
    assert not any(name.split(".")[0] in ("torch", "torchvision") for name in imports(path))
    assert "worker" not in our_rooms(path)
    floor = next((number for number, rooms in enumerate(FLOORS) if room(path) in rooms), None)
    assert floor is not None, f"{path.name} is on no floor: say where it stands in FLOORS"
    allowed = frozenset().union(*FLOORS[: floor + 1])
    assert our_rooms(path) <= allowed


def test_the_vocabulary_is_standard_library_only() -> None:
    for name in FLOORS[0]:
        for imported in imports(PACKAGE / f"{name}.py"):
            top = imported.split(".")[0]
            assert top == "sweeper" or top in sys.stdlib_module_names, f"{name} imports {imported}"


@pytest.mark.parametrize(
    "statement", ["import sweeper, sweeper.cli", "import sweeper; sweeper.sweep; sweeper.Run; sweeper.predict"]
)
def test_the_driver_starts_without_torch_or_matplotlib(statement: str) -> None:
    code = f"{statement}; import sys; sys.exit(len({{'torch', 'matplotlib', 'numpy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(sweeper.__all__) == [
        "Forecast",
        "Run",
        "SweepError",
        "__version__",
        "load",
        "predict",
        "resume",
        "sweep",
    ]
    for name in sweeper.__all__:
        assert getattr(sweeper, name) is not None
    with pytest.raises(AttributeError):
        sweeper.nonsense  # noqa: B018
