"""The largest batch that fits: found, proven, recorded, drawn.

>>> import sweeper
>>> run = sweeper.sweep(model="resnet18", max_batch=512)
>>> run.max_batch, run.proven
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sweeper.api import (
        Comparison,
        Difference,
        Forecast,
        Frontier,
        Run,
        compare,
        diff,
        frontier,
        load,
        predict,
        resume,
        sweep,
    )
    from sweeper.errors import SweepError

__all__ = [
    "Comparison",
    "Difference",
    "Forecast",
    "Frontier",
    "Run",
    "SweepError",
    "__version__",
    "compare",
    "diff",
    "frontier",
    "load",
    "predict",
    "resume",
    "sweep",
]


def __getattr__(name: str) -> Any:
    # The worker imports this package before torch; it has no use for the driver's modules.
    if name == "SweepError":
        from sweeper import errors

        return errors.SweepError
    if name in __all__:
        from sweeper import api

        return getattr(api, name)
    raise AttributeError(f"module 'sweeper' has no attribute {name!r}")
