"""Simulate a training step of 40 models at random, in fp32 and under autocast, and tell which cannot and why.

    PYTHONPATH=. python scripts/check_libraries.py                  10 of each kind, seed 0
    PYTHONPATH=. python scripts/check_libraries.py --seed 7 --each 3
    PYTHONPATH=. python scripts/check_libraries.py --types          transformers' own defaults, a type at random

The kinds are torchvision's classification, its other models, timm and transformers.  A model that runs out of the
card's memory was simulated; one that is refused or breaks was not.  Leaves with 1 when there is one.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper import listing, model_names
from sweeper.architectures import architecture_names
from sweeper.runner import open_runner
from sweeper.trial import Broken, Fit, OutOfMemory, Precision, Refused, Response, TrialSpec
from sweeper.units import format_bytes

# The largest single card of the catalogue; gradients and states of 13 billion parameters are what it has no room for.
_CARD = "sim:h200"
_PRECISIONS: tuple[Precision, ...] = ("fp32", "amp-bf16")
_BATCH = 2


@dataclass(frozen=True)
class Model:
    kind: str
    name: str
    config: str | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=10, metavar="N", help="models of each kind")
    parser.add_argument("--types", action="store_true", help="transformers by type of configuration, not by name")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models = chosen(random.Random(given.seed), given.each, Path(scratch) if given.types else None)
        failed = [model for model, is_simulated in simulated(models, Path(scratch)) if not is_simulated]
    print(f"\n{len(models) - len(failed)} of {len(models)} were simulated in {' and '.join(_PRECISIONS)}")
    return 1 if failed else 0


def chosen(draw: random.Random, each: int, types_in: Path | None) -> list[Model]:
    """``each`` of every kind; with ``types_in``, a folder to write configurations in, of transformers' types alone."""
    if types_in is not None:
        return [_of_type(model_type, types_in) for model_type in draw.sample(_types(), each)]
    classification = model_names.CLASSIFICATION
    others = sorted({*model_names.known_models()} - {*classification, *model_names.TEACHING})
    timm = [row.name for row in listing.matching("timm:*")]
    kinds: dict[str, Sequence[str]] = {
        "torchvision": classification,
        "torchvision, other": others,
        "timm": timm,
        "transformers": [f"hf:{name}" for name in architecture_names()],
    }
    return [Model(kind, name) for kind, names in kinds.items() for name in sorted(draw.sample(sorted(names), each))]


def _types() -> list[str]:
    """The types of transformers whose library says a head of ours for them."""
    from transformers.models.auto import modeling_auto

    found: set[str] = set()
    for task in ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_CLASSIFICATION"):
        found |= getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").keys()
    return sorted(found)


def _of_type(model_type: str, folder: Path) -> Model:
    file = folder / f"{model_type}.json"
    file.write_text(json.dumps({"model_type": model_type}))
    return Model("transformers, default", f"hf:{model_type}", str(file))


def simulated(models: Sequence[Model], scratch: Path) -> Iterator[tuple[Model, bool]]:
    """Run every model, print its row, and say of each whether both its steps were simulated."""
    width = max(len(model.name) for model in models)
    preload = {module for model in models for module in model_names.modules_of(model.name, None)[:1]}
    with open_runner("fork", timeout_s=600, preload=sorted(preload)) as runner:
        for model in models:
            fine, words = True, []
            for precision in _PRECISIONS:
                began = time.monotonic()
                spec = TrialSpec(
                    model=model.name, config=model.config, batch_size=_BATCH, device=_CARD, precision=precision, steps=2
                )
                said = runner.run(spec, scratch / "trial")
                fine = fine and isinstance(said, Fit | OutOfMemory)
                words.append(f"{precision} {_words(said)} ({time.monotonic() - began:.1f} s)")
            print(f"{model.kind:<20} {model.name:<{width}}  {'; '.join(words)}", flush=True)
            yield model, fine


def _words(said: Response) -> str:
    match said:
        case Fit():
            return format_bytes(said.peak_allocated_bytes)
        case OutOfMemory():
            return "more than the card has"
        case Broken():
            return f"BROKE {said.reason}"
        case Refused():
            return f"REFUSED {said.message}"
    return f"answered {type(said).__name__}"


if __name__ == "__main__":
    sys.exit(main())
