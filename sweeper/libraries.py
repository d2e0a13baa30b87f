"""What a trial imports besides torch and torchvision, told from its spec: for the host, which imports it once for all
trials, and for the traces that are kept, which are of its versions.
"""

from sweeper.model_names import LIBRARIES, library_of, modules_of
from sweeper.trial import TrialSpec

__all__ = ["distributions_of", "imports_of"]


def distributions_of(spec: TrialSpec) -> tuple[str, ...]:
    """The distributions, which are called as the packages in them."""
    library = library_of(spec.model)
    found = [] if library is None else [LIBRARIES[library[0]]]
    if spec.lora_rank is not None:
        found.append("peft")
    if spec.precision == "fp8" or spec.optimizer == "adamw-8bit":
        found.append("torchao")
    return tuple(found)


def imports_of(spec: TrialSpec) -> tuple[str, ...]:
    """The modules that take long enough to be imported before a trial."""
    found = [*modules_of(spec.model, spec.config)]
    if spec.lora_rank is not None:
        found.append("peft")
    if spec.precision == "fp8":
        found.append("torchao.float8")
    if spec.optimizer == "adamw-8bit":
        found += ["torchao.optim", "torch._dynamo"]
    return tuple(found)
