"""What a trial is asked, and what it can answer.  Both sides of the wall speak in these types; nothing else crosses.

A trial trains one model at one batch size in a process of its own and ends in one ``Outcome``: it fitted, it ran out
of memory, or it broke.  Sizes are bytes, times are seconds, and what was not measured is None, never a guess.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sweeper.cards import Card
from sweeper.wire import WireError, from_jsonable, to_jsonable

__all__ = [
    "ATTENTIONS",
    "KINDS",
    "MODES",
    "OPTIMIZERS",
    "PHASES",
    "PRECISIONS",
    "SCHEMA",
    "Attention",
    "Breakdown",
    "Broken",
    "Calibrate",
    "CalibrationTrial",
    "CardActivity",
    "CardMemory",
    "Describe",
    "DescribeModel",
    "DeviceReport",
    "Fit",
    "Fragmentation",
    "ModelReport",
    "NotFinite",
    "OutOfMemory",
    "Outcome",
    "PhasePeak",
    "Refused",
    "Scalar",
    "StepRecord",
    "TrialSpec",
    "Request",
    "Response",
    "TakeTraces",
    "Traced",
    "request_from_json",
    "request_to_json",
    "response_from_json",
    "response_to_json",
]

# The version of request.json and result.json.  Driver and worker are of one installation, so there is nothing to
# upgrade: another number is an error.  The journal, which outlives an installation, has a number of its own.
SCHEMA = 1

# ``step`` is the optimizer's; ``train_step`` is all that a training step of the user's own does with its batch.
Phase = Literal["setup", "inputs", "forward", "loss", "backward", "step", "zero_grad", "train_step"]
PHASES: tuple[Phase, ...] = ("setup", "inputs", "forward", "loss", "backward", "step", "zero_grad", "train_step")

Kind = Literal["weights", "buffers", "gradients", "optimizer", "inputs", "activations", "workspace"]
KINDS: tuple[Kind, ...] = ("weights", "buffers", "gradients", "optimizer", "inputs", "activations", "workspace")

# ``tf32`` is fp32 whose matrix products and convolutions may round their factors; ``amp-*`` is autocast, with a
# gradient scaler for fp16; ``fp16`` and ``bf16`` hold weights, gradients and activations in that type; ``fp8`` computes
# linear layers in it (torchao) on weights of fp32.
Precision = Literal["fp32", "tf32", "amp-fp16", "amp-bf16", "fp16", "bf16", "fp8"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "amp-fp16", "amp-bf16", "fp16", "bf16", "fp8")
Optimizer = Literal["sgd", "sgd-momentum", "adam", "adamw", "adagrad", "rmsprop", "adafactor", "adamw-8bit"]
OPTIMIZERS: tuple[Optimizer, ...] = (
    "sgd", "sgd-momentum", "adam", "adamw", "adagrad", "rmsprop", "adafactor", "adamw-8bit",
)  # fmt: skip
Mode = Literal["train", "inference"]
MODES: tuple[Mode, ...] = ("train", "inference")
Attention = Literal["auto", "flash", "efficient", "math"]
ATTENTIONS: tuple[Attention, ...] = ("auto", "flash", "efficient", "math")

Scalar = int | float | bool | str  # what an argument on the command line can be

NotFinite = Literal["nan", "inf", "-inf"]  # what a loss can be that is no finite number

# The classes of failure; failures.py says how evidence is read.  The first two can move the boundary.
FailureClass = Literal[
    "oom_device", "oom_suspect", "oom_host",
    "kernel_limit", "cuda_fault", "model_error", "numeric", "timeout", "spilled", "infra",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One trial: what to train, how, where, and at which size.

    A choice that its model or device cannot do is refused, by ``choices`` before the first trial or by the worker.
    ``config`` is a model configuration (JSON) of a library that builds from one.  ``optimizer_args`` go to the
    optimizer's constructor, ``foreach`` and ``fused`` among them.  ``freeze`` are patterns (``fnmatch``) of parameter
    names that are not trained; with ``lora_rank`` all are frozen but the adapters and a classifier's last layer.
    One step of the optimizer takes ``accumulate`` batches of ``batch_size``.  ``attention`` is the only kernel that may
    be chosen.  ``card`` is the card to simulate where it is not as the catalogue has it: calibrated, or of no
    catalogue.
    """

    TAGGED: ClassVar[bool] = True

    model: str
    batch_size: int
    device: str  # "cuda", "cuda:1", "cpu" or "sim:CARD"; never "auto", which the driver resolves
    model_args: Mapping[str, Scalar] = field(default_factory=dict)
    config: str | None = None
    image_size: int | None = None  # pixels a side; None is the model's own
    seq_len: int | None = None  # tokens; None is the model's own
    precision: Precision = "fp32"
    optimizer: Optimizer = "sgd"
    optimizer_args: Mapping[str, Scalar] = field(default_factory=dict)
    mode: Mode = "train"
    accumulate: int = 1
    checkpointing: bool = False
    freeze: tuple[str, ...] = ()
    lora_rank: int | None = None
    channels_last: bool = False
    compile: bool = False
    attention: Attention = "auto"
    alloc_conf: str | None = None  # as in PYTORCH_CUDA_ALLOC_CONF, which is what counts where this is None
    steps: int = 3
    memory_limit_bytes: int | None = None
    seed: int = 0
    card: Card | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Bytes by kind at one moment.  The kinds add up to what was allocated then.

    ``workspace`` is what an operator holds only while it runs, with cuBLAS's and cuDNN's own scratch.
    """

    weights: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer: int = 0
    inputs: int = 0
    activations: int = 0
    workspace: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(getattr(self, kind) for kind in KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The most memory in one phase, over all steps."""

    phase: Phase
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One full step.

    ``seconds`` is None where nothing was computed.  ``loss`` is None where there is none (inference, a simulated step),
    and where it is no finite number: then ``not_finite`` says what it is.
    """

    seconds: float | None
    loss: float | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    not_finite: NotFinite | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMemory:
    """The driver's own view of the card (NVML) at one moment, in bytes.

    ``process_bytes`` is what the driver counts for the trial's process, context included; None where the driver does
    not tell.  ``used_bytes`` is over all processes.
    """

    total_bytes: int
    used_bytes: int
    process_bytes: int | None = None

    @property
    def others_bytes(self) -> int | None:
        """What other processes hold; None where the driver does not tell them apart."""
        return None if self.process_bytes is None else max(0, self.used_bytes - self.process_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CardActivity:
    """What the driver (NVML) said of the card in ``samples`` readings between the first step and the last.

    Utilisation is the percentage of the driver's own sampling period, 1/6 to 1 s, in which some kernel ran (nvml.h,
    ``nvmlUtilization_t``): in steps that take less altogether it is of what came before them too.  Power is watts,
    which the driver averages over a second on most cards since Ampere (nvml.h, ``nvmlDeviceGetPowerUsage``).  None is
    what the card does not tell.
    """

    samples: int
    utilization_mean_percent: float | None = None
    utilization_max_percent: float | None = None
    power_mean_w: float | None = None
    power_max_w: float | None = None
    clock_mean_mhz: float | None = None  # of the multiprocessors
    temperature_max_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragmentation:
    """The caching allocator at one moment, in bytes: the fullest end of a forward or a loss in the step looked at.

    Activations are all there then, so what is reserved and not allocated lies between what is in use.
    ``largest_free_bytes`` is the largest free block of all that is reserved.
    """

    allocated_bytes: int
    reserved_bytes: int
    largest_free_bytes: int

    @property
    def unused_bytes(self) -> int:
        """Reserved and not allocated."""
        return self.reserved_bytes - self.allocated_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Every step ran.

    Peaks are over the whole trial.  On ``cpu`` there is no caching allocator: allocated and reserved are both the
    growth of the resident set.  ``capacity_bytes`` is what the device could give this trial, under its limit.
    ``breakdown`` is the moment of the peak; ``holdings`` is the most each kind held at any time.  ``facts`` say what
    was done to the model for the spec's choices, ``notes`` what a reader should beware of.  A loss that is no number is
    told by ``steps`` and takes nothing away from this: the memory was measured all the same.

    ``step_seconds`` is the median without the first step, and without the one in which the allocator was looked at
    where there is another.  A step is ``accumulate`` batches.  ``host_peak_bytes`` is the most the trial's process held
    of the machine's memory, libraries included; None on ``cpu``, where that is what the peaks are.
    """

    TAGGED: ClassVar[bool] = True

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int
    steps: tuple[StepRecord, ...]
    phases: tuple[PhasePeak, ...] = ()
    breakdown: Breakdown | None = None
    holdings: Breakdown | None = None
    facts: tuple[str, ...] = ()
    step_seconds: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None  # of models of sequences
    process_bytes: int | None = None  # the driver's peak view of the process, context included
    context_bytes: int | None = None  # of that, what is not the allocator's
    host_peak_bytes: int | None = None
    fragmentation: Fragmentation | None = None
    activity: CardActivity | None = None
    allocator_retries: int | None = None  # times the allocator gave back its cache and tried again
    card_before: CardMemory | None = None
    card_after: CardMemory | None = None
    notes: tuple[str, ...] = ()

    @property
    def loss_finite(self) -> bool | None:
        """Whether every step's loss was a finite number; None where no step had one."""
        if any(step.not_finite for step in self.steps):
            return False
        return True if any(step.loss is not None for step in self.steps) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The device could not give what a step asked for.

    ``failure`` is ``oom_device``; or ``oom_suspect``, an error that is out of memory only if it comes again with
    little memory free; or, on ``cpu`` alone, ``oom_host``.  ``operator`` and ``module`` are where it happened, as far
    as known; in backward the module is the one whose forward made the operator.
    """

    TAGGED: ClassVar[bool] = True

    failure: Literal["oom_device", "oom_suspect", "oom_host"]
    phase: Phase
    step: int  # counts from 0
    message: str  # the error's first line
    traceback: str = ""
    requested_bytes: int | None = None
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    allocated_bytes: int | None = None  # at the moment of failure
    reserved_bytes: int | None = None
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    operator: str | None = None
    module: str | None = None
    breakdown: Breakdown | None = None
    process_bytes: int | None = None
    context_bytes: int | None = None
    allocator_retries: int | None = None
    card_before: CardMemory | None = None
    card_after: CardMemory | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The trial failed for a reason that says nothing about the device's memory."""

    TAGGED: ClassVar[bool] = True

    failure: FailureClass
    reason: str  # one line
    phase: Phase | None = None
    traceback: str = ""
    log_tail: str = ""


Outcome = Fit | OutOfMemory | Broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """The request for a ``DeviceReport``; ``card`` and ``alloc_conf`` as in ``TrialSpec``."""

    TAGGED: ClassVar[bool] = True

    device: str
    memory_limit_bytes: int | None = None
    card: Card | None = None
    alloc_conf: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrate:
    """The request to train as ``spec`` says on a GPU, and to tell what of the card is not the allocator's."""

    TAGGED: ClassVar[bool] = True

    spec: TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationTrial:
    """The answer to ``Calibrate`` when the trial fits; another outcome is answered as it is.  Bytes.

    ``context_bytes`` and ``outside_bytes`` are of the card's total neither free nor reserved by the allocator
    (cudaMemGetInfo): before the first tensor, and after the last step with every kernel loaded that it needs.
    Other processes count in both.
    """

    TAGGED: ClassVar[bool] = True

    fit: Fit
    context_bytes: int
    outside_bytes: int
    cublas_workspace_bytes: int  # held by the allocator for cuBLAS and cuBLASLt, all handles together


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeTraces:
    """The request for traces of ``spec``'s step on meta tensors at each of ``sizes`` along ``axis`` (see ``axes``)."""

    TAGGED: ClassVar[bool] = True

    spec: TrialSpec
    sizes: tuple[int, ...]
    axis: str = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The answer to ``TakeTraces``: a file in the request's folder for each size, in the format of ``trace``.

    ``sources`` are the files of the user's own that the model was made from; none for a model that has a name.
    """

    TAGGED: ClassVar[bool] = True

    files: tuple[str, ...]
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """What a device is, asked once a run."""

    TAGGED: ClassVar[bool] = True

    device: str  # as in TrialSpec
    label: str  # "NVIDIA GeForce RTX 4060", "AMD EPYC 7B13"
    simulated: bool
    total_bytes: int
    capacity_bytes: int  # what a trial can have now, under the limit asked for
    compute_capability: str | None = None
    multiprocessors: int | None = None  # of an NVIDIA card
    driver: str | None = None
    torch: str | None = None
    torchvision: str | None = None
    cuda: str | None = None
    allocator_conf: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeModel:
    """The request for a ``ModelReport`` of what ``spec`` trains; nothing is trained, and no weights are held."""

    TAGGED: ClassVar[bool] = True

    spec: TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """What a model is, and which sizes of its inputs it can take.

    ``inputs`` are the shapes of one sample in words: ``3 x 224 x 224``, ``1024 tokens``.  ``image_step`` and
    ``token_step`` are what sides and lengths must be multiples of, ``image_least`` the smallest side.  A model that
    has an embedding for each of its ``positions`` takes no longer sequence, unless ``positions_argument`` among its
    arguments says more.  What does not apply, or is not known, is None.
    """

    TAGGED: ClassVar[bool] = True

    parameters: int
    trainable: int
    inputs: str
    image_size: int | None = None  # its own, when none is asked for
    image_step: int | None = None
    image_least: int | None = None
    seq_len: int | None = None
    token_step: int | None = None
    positions: int | None = None
    positions_argument: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The answer to a request that cannot be met as it stands: no such device here, a model argument that is none."""

    TAGGED: ClassVar[bool] = True

    message: str
    hint: str


Request = TrialSpec | Describe | DescribeModel | TakeTraces | Calibrate
Response = Outcome | DeviceReport | ModelReport | Refused | Traced | CalibrationTrial


def request_to_json(request: Request) -> str:
    return json.dumps({"schema": SCHEMA, **to_jsonable(request)}, indent=1)


def request_from_json(text: str) -> Request:
    """Raises ``WireError`` when ``text`` is no request of this schema."""
    return _read(Request, text)  # type: ignore[no-any-return]


def response_to_json(response: Response) -> str:
    return json.dumps({"schema": SCHEMA, **to_jsonable(response)}, indent=1)


def response_from_json(text: str) -> Response:
    """Raises ``WireError`` when ``text`` is no response of this schema."""
    return _read(Response, text)  # type: ignore[no-any-return]


def _read(kind: Any, text: str) -> Any:
    try:
        data = json.loads(text)
    except ValueError as problem:
        raise WireError(f"not JSON: {problem}") from None
    if not isinstance(data, dict) or (found := data.pop("schema", None)) is None:
        raise WireError("no schema number")
    if found != SCHEMA:
        raise WireError(f"schema {found}, expected {SCHEMA}")
    return from_jsonable(kind, data)
