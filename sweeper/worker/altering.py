"""What the choices of a spec change in a workload before its model is placed, in the order in which they must come."""

import dataclasses

from sweeper.trial import TrialSpec
from sweeper.worker.adapting import add_adapters, freeze
from sweeper.worker.attention_choice import watched
from sweeper.worker.checkpointing import wrap_blocks
from sweeper.worker.memory_format import channels_last
from sweeper.worker.models import Workload

__all__ = ["altered"]


def altered(workload: Workload, spec: TrialSpec) -> tuple[Workload, tuple[str, ...]]:
    """``workload`` as ``spec`` wants it, its model changed in place; and what was done, a sentence each.

    Runs where models are built.  Raises ``UsageError`` for a choice that the model cannot do.
    """
    facts = []
    if spec.lora_rank is not None:
        facts.append(add_adapters(workload.model, spec.lora_rank, spec.model))
    if spec.freeze:
        facts.append(freeze(workload.model, spec.freeze, spec.model))
    if spec.checkpointing:  # after the adapters, which are part of their blocks
        facts.append(wrap_blocks(workload, spec.model))
    if spec.channels_last:  # after the adapters, which may be convolutions
        workload = channels_last(workload, spec.model)
    if spec.attention != "auto":
        workload = dataclasses.replace(workload, forward=watched(workload.forward, spec))
    return workload, tuple(facts)
