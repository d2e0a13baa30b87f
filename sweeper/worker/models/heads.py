"""What a transformers model is trained on, by its task head: the inputs it takes and the labels of its own loss.

A head is found by the class that a configuration names.  Where it names a bare encoder or decoder, the head is that of
the library's automatic classes for its type, in the order of ``_HEADS``: what the model was pretrained for comes first.

Sequences are full, without padding, so there is no attention mask: the library drops one that hides nothing
(``transformers.masking_utils``), and the fused attention kernels run as they do in packed pretraining.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sweeper.errors import UsageError

__all__ = ["Head", "Shapes", "head_of"]

Inputs = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """What a sample is made of: ``seq_len`` tokens of a vocabulary, an image, a number of classes."""

    config: Any
    seq_len: int | None
    image_size: int | None

    def tokens(self, batch: int) -> Tensor:
        return torch.randint(self.config.get_text_config().vocab_size, (batch, self.seq_len or 1))

    def images(self, batch: int) -> Tensor:
        vision = getattr(self.config, "vision_config", self.config)
        side = self.image_size
        assert side is not None
        return torch.randn(batch, getattr(vision, "num_channels", 3), side, side)

    def spectrograms(self, batch: int) -> Tensor:
        """Log-mel frames, two for each position of the encoder (its second convolution has a stride of 2)."""
        return torch.randn(batch, self.config.num_mel_bins, 2 * self.config.max_source_positions)

    def classes(self, *shape: int) -> Tensor:
        return torch.randint(self.config.num_labels, shape)

    def per_token(self, batch: int) -> tuple[int, int]:
        return batch, self.seq_len or 1


Maker = Callable[[Shapes, int], Inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """``mapping`` is the name of the library's table of classes; ``inputs`` and ``labels`` make a batch's halves.

    ``has_tokens`` and ``has_images`` are what a sample can be made longer or larger in.  One that ``decodes`` makes the
    inputs of its decoder from the labels; without labels it is given some.  One that ``pads`` looks for the padding to
    find where a sequence ends.
    """

    task: str
    mapping: str
    inputs: Maker
    labels: Maker
    has_tokens: bool = False
    has_images: bool = False
    decodes: bool = False
    pads: bool = False

    def batch(self, shapes: Shapes, size: int, *, training: bool) -> Inputs:
        """A batch as keywords of the model: with labels to train, without to run forward alone."""
        given = self.inputs(shapes, size)
        if training:
            return {**given, **self.labels(shapes, size)}
        return {**given, "decoder_input_ids": shapes.tokens(size)} if self.decodes else given

    def words(self, shapes: Shapes) -> str:
        """One sample's inputs, without labels: ``512 tokens``, ``3 x 224 x 224``."""
        with torch.device("meta"):
            made = self.inputs(shapes, 1)
        kinds = {"input_ids": "tokens", "input_features": "log-mel frames"}
        return ", ".join(
            " ".join(filter(None, [" x ".join(map(str, value.shape[1:])), kinds.get(key)]))
            for key, value in made.items()
        )


def _tokens(shapes: Shapes, batch: int) -> Inputs:
    return {"input_ids": shapes.tokens(batch)}


def _images(shapes: Shapes, batch: int) -> Inputs:
    return {"pixel_values": shapes.images(batch)}


def _token_labels(shapes: Shapes, batch: int) -> Inputs:
    return {"labels": shapes.tokens(batch)}


def _class_labels(shapes: Shapes, batch: int) -> Inputs:
    return {"labels": shapes.classes(batch)}


def _tag_labels(shapes: Shapes, batch: int) -> Inputs:
    return {"labels": shapes.classes(*shapes.per_token(batch))}


def _span_labels(shapes: Shapes, batch: int) -> Inputs:
    return {name: torch.randint(shapes.seq_len or 1, (batch,)) for name in ("start_positions", "end_positions")}


def _spectrograms(shapes: Shapes, batch: int) -> Inputs:
    return {"input_features": shapes.spectrograms(batch)}


_HEADS = (
    Head(
        task="speech recognition",
        mapping="MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
        inputs=_spectrograms,
        labels=_token_labels,
        has_tokens=True,
        decodes=True,
    ),
    Head(
        task="seq2seq language model",
        mapping="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        inputs=_tokens,
        labels=_token_labels,
        has_tokens=True,
        decodes=True,
    ),
    Head(
        task="image classification",
        mapping="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        inputs=_images,
        labels=_class_labels,
        has_images=True,
    ),
    Head(
        task="masked language model",
        mapping="MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        inputs=_tokens,
        labels=_token_labels,
        has_tokens=True,
    ),
    Head(
        task="causal language model",
        mapping="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        inputs=_tokens,
        labels=_token_labels,
        has_tokens=True,
    ),
    Head(
        task="contrastive image-text model",
        mapping="MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        inputs=lambda shapes, batch: {**_tokens(shapes, batch), **_images(shapes, batch)},
        labels=lambda shapes, batch: {"return_loss": True},
        has_tokens=True,
        has_images=True,
    ),
    Head(
        task="sequence classification",
        mapping="MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        inputs=_tokens,
        labels=_class_labels,
        has_tokens=True,
        pads=True,
    ),
    Head(
        task="token classification",
        mapping="MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
        inputs=_tokens,
        labels=_tag_labels,
        has_tokens=True,
    ),
    Head(
        task="question answering",
        mapping="MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
        inputs=_tokens,
        labels=_span_labels,
        has_tokens=True,
    ),
)
# Its pretraining head tells which tokens were replaced: a label of 0 or 1 for each.
_ELECTRA = Head(
    task="replaced token detection",
    mapping="",
    inputs=_tokens,
    labels=lambda shapes, batch: {"labels": torch.randint(2, shapes.per_token(batch))},
    has_tokens=True,
)


def head_of(config: Any, name: str) -> tuple[str, Head]:
    """Return the class of transformers to build and its head.  Raises ``UsageError`` where there is none to train."""
    from transformers.models.auto import modeling_auto

    named = [one for one in config.architectures or () if isinstance(one, str)]
    if "ElectraForPreTraining" in named:
        return "ElectraForPreTraining", _ELECTRA
    for head in _HEADS:
        classes = _classes(getattr(modeling_auto, head.mapping))
        for class_name in named:
            if class_name in classes:
                return class_name, head
    for head in _HEADS:
        found = getattr(modeling_auto, head.mapping).get(config.model_type)
        if found is not None:
            return (found if isinstance(found, str) else found[0]), head
    what = named[0] if named else f"a {config.model_type}"
    raise UsageError(
        f"hf:{name} is {what}, which has no task head that sweeper trains",
        hint=f"it trains {', '.join(head.task for head in _HEADS)}; for another, write a factory: file.py:factory",
    )


def _classes(mapping: Mapping[str, str | tuple[str, ...]]) -> set[str]:
    found: set[str] = set()
    for value in mapping.values():
        found.update([value] if isinstance(value, str) else value)
    return found
