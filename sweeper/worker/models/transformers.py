"""transformers: any architecture of the library, built from a configuration with random weights.

Memory does not depend on the weights' values, so none are downloaded, and nothing is initialised on meta: a model of
13 billion parameters is made in seconds and holds nothing.  The class is the one its configuration names, with that
class's own loss (``heads``).

Keys and values are not kept for generation (``use_cache``), as the library's own trainer has it; ``--model-arg
use_cache=true`` keeps them.  Without ``--seq-len`` a sequence has 512 tokens, or all the positions where the model has
fewer: a length that every family has, and no more than a first answer needs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from sweeper.errors import UsageError
from sweeper.worker.models import Batch, Workload
from sweeper.worker.models.configurations import configuration_of
from sweeper.worker.models.heads import Head, Shapes, head_of

__all__ = ["build"]

_SEQ_LEN = 512
# What the libraries' models call an embedding with a row for each position.
_POSITION_TABLES = frozenset({"wpe", "position_embeddings", "position_embedding", "embed_positions", "positions_embed"})


def build(
    name: str,
    model_args: Mapping[str, Any],
    *,
    config_file: str | None,
    seq_len: int | None,
    image_size: int | None,
    training: bool,
) -> Workload:
    """Return the model ``name`` of the hub, such as ``meta-llama/Llama-2-13b-hf``, or that ``config_file`` says.

    ``model_args`` are fields of the configuration.  Without ``training`` batches have no labels, and there is no loss.
    Raises ``UsageError`` where there is no such configuration, head or field, and for sizes it does not take.
    """
    import transformers

    config = configuration_of(name, config_file, model_args)
    if "use_cache" not in model_args and hasattr(config, "use_cache"):
        config.use_cache = False
    class_name, head = head_of(config, name)
    _name_special_tokens(config, head)
    _check_kinds(name, head, seq_len=seq_len, image_size=image_size)
    images = _image_sizes(config, image_size) if head.has_images else {}
    try:
        model = getattr(transformers, class_name)(config)
    except ImportError as problem:  # an optional part of the library, such as detectron2
        first = str(problem).strip().splitlines()[0]
        raise UsageError(f"hf:{name}: {first}", hint="install it, or choose another model") from None
    tokens = _token_sizes(name, model, head, seq_len) if head.has_tokens else {}
    shapes = Shapes(
        config=config,
        seq_len=seq_len or tokens.get("seq_len"),
        image_size=image_size or images.get("image_size"),
    )

    def make_batch(batch: int) -> Batch:
        return head.batch(shapes, batch, training=training), None

    notes = (f"{class_name}: {head.task}",)
    return Workload(
        model=model,
        make_batch=make_batch,
        loss=_own_loss,
        tokens=shapes.seq_len if head.has_tokens else None,
        checkpoint=_checkpoint(model),
        sizes={**images, **tokens, "inputs": head.words(shapes), "notes": notes},
    )


def _name_special_tokens(config: Any, head: Head) -> None:
    """Where a configuration leaves them to its tokenizer: any will do, for nothing here is padded or generated."""
    needed = ("pad_token_id", "decoder_start_token_id") if head.decodes else ("pad_token_id",) if head.pads else ()
    for token in needed:
        if getattr(config, token, None) is None:
            setattr(config, token, 0)


def _own_loss(outputs: Any, _targets: None) -> Tensor:
    loss = getattr(outputs, "loss", None)
    if loss is None:
        raise UsageError(
            f"{type(outputs).__name__} has no loss", hint="write a factory with a loss of its own: file.py:factory"
        )
    return loss  # type: ignore[no-any-return]


def _check_kinds(name: str, head: Head, *, seq_len: int | None, image_size: int | None) -> None:
    if seq_len is not None and not head.has_tokens:
        raise UsageError(f"hf:{name} takes no tokens, so --seq-len {seq_len} says nothing", hint="leave it out")
    if image_size is not None and not head.has_images:
        raise UsageError(f"hf:{name} takes no images, so --image-size {image_size} says nothing", hint="leave it out")


def _image_sizes(config: Any, image_size: int | None) -> dict[str, Any]:
    """Set ``image_size`` where the configuration has one; return what is known of the sizes it takes."""
    vision = getattr(config, "vision_config", config)
    own = getattr(vision, "image_size", None)
    own = own if isinstance(own, int) else 224  # convolutions alone: the size of ImageNet's crops
    # A pyramid of stages pads to its windows; one grid of patches drops what is left over at the edge.
    patch = None if hasattr(vision, "depths") else getattr(vision, "patch_size", None)
    step = patch if isinstance(patch, int) else 1
    if image_size is not None:
        if image_size % step:
            near = max(step, round(image_size / step) * step)
            raise UsageError(
                f"{config.model_type} needs an image size that {step} divides, not {image_size}",
                hint=f"the nearest is {near}",
            )
        if hasattr(vision, "image_size"):
            vision.image_size = image_size
    return {"image_size": own, "image_step": step, "image_least": step if step > 1 else None}


def _token_sizes(name: str, model: nn.Module, head: Head, seq_len: int | None) -> dict[str, Any]:
    """What is known of the lengths ``model`` takes.  Raises ``UsageError`` for a longer one than it has positions."""
    config: Any = model.config
    decoder = config if head.decodes else config.get_text_config()
    argument = "max_target_positions" if hasattr(decoder, "max_target_positions") else "max_position_embeddings"
    said = getattr(decoder, argument, None)
    said = said if isinstance(said, int) and said > 0 else None
    positions = None if said is None else _positions(model, said)
    argument = decoder.attribute_map.get(argument, argument)
    if seq_len is not None and positions is not None and seq_len > positions:
        assert said is not None
        needed = seq_len + said - positions
        raise UsageError(
            f"hf:{name} has {positions} positions, and a sequence of {seq_len} tokens needs one for each",
            hint=f"give it more: --model-arg {argument}={needed}",
        )
    own = min(_SEQ_LEN, positions or said or _SEQ_LEN)
    return {"seq_len": own, "positions": positions, "positions_argument": argument if positions is not None else None}


def _positions(model: nn.Module, said: int) -> int | None:
    """How many tokens ``model`` has positions for, of ``said`` in its configuration; None where none are in a table.

    Some tables have rows before the first position: OPT's and BART's beyond what is said (2), RoBERTa's among it (up
    to the padding's own row).
    """
    for path, module in model.named_modules():
        if path.rpartition(".")[2] in _POSITION_TABLES and isinstance(module, nn.Embedding):
            if module.num_embeddings == said:
                return said if module.padding_idx is None else said - module.padding_idx - 1
            if module.num_embeddings == said + getattr(module, "offset", -1):
                return said
    return None


def _checkpoint(model: Any) -> Callable[[], str] | None:
    """The library's own switch; None for a model that has none."""
    if not getattr(model, "supports_gradient_checkpointing", False):
        return None

    def enable() -> str:
        # Renamed in transformers 5; the older name warns.
        switch = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        switch()
        wrapped = [type(module).__name__ for module in model.modules() if _recomputes(module)]
        kinds = ", ".join(sorted(set(wrapped)))
        return f"{len(wrapped)} of transformers' own blocks ({kinds})"

    return enable


def _recomputes(module: nn.Module) -> bool:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return isinstance(module, GradientCheckpointingLayer) and bool(getattr(module, "gradient_checkpointing", False))
