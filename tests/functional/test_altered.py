"""What choices change in a model, and that training stays what it was: on the CPU with values, on a card simulated."""

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sweeper.runner import ForkRunner
from sweeper.trial import Fit, Refused, TrialSpec
from sweeper.worker import trial
from sweeper.worker.altering import altered
from sweeper.worker.models import Workload
from sweeper.worker.workload import load
from tests.builders import a_spec

ATTENDING = f"{Path(__file__).parents[1] / 'workers' / 'attending.py'}:attending"
FILMED = f"{Path(__file__).parents[1] / 'workers' / 'attending.py'}:filmed"
needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(spec: TrialSpec, *, on_meta: bool = False) -> tuple[Workload, tuple[str, ...]]:
    """The workload of ``spec`` as a trial would train it, and what was done to it."""
    with torch.device("meta" if on_meta else "cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft's own imports
        return altered(load(spec), spec)


def simulated(**choices: Any) -> Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = trial.run(a_spec(**{"device": "sim:a100-40gb", "batch_size": 4, "steps": 2, **choices}))
    assert isinstance(outcome, Fit), outcome
    return outcome


def refused(**choices: Any) -> Refused:
    outcome = trial.run(a_spec(**{"device": "sim:a100-40gb", "batch_size": 2, **choices}))
    assert isinstance(outcome, Refused), outcome
    assert outcome.hint
    return outcome


def gradients(workload: Workload) -> dict[str, Tensor]:
    """Of every parameter that is trained, after one step on a batch of 2; random numbers from the same seed."""
    workload.model.train()
    torch.manual_seed(3)
    with torch.device(next(workload.model.parameters()).device):
        inputs, targets = workload.make_batch(2)
    workload.loss(workload.forward(workload.model, inputs), targets).backward()
    return {name: p.grad for name, p in workload.model.named_parameters() if p.requires_grad and p.grad is not None}


# ---- checkpointing


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("resnet18", "8 blocks (BasicBlock)"),
        ("vit_b_16", "12 blocks of encoder.layers (EncoderBlock)"),
        ("swin_t", "12 blocks of features (SwinTransformerBlock)"),
        ("efficientnet_b0", "16 blocks of features (MBConv)"),
        ("efficientnet_v2_s", "40 blocks of features (FusedMBConv, MBConv)"),
        ("convnext_tiny", "18 blocks of features (CNBlock)"),
        ("densenet121", "58 blocks of features (_DenseLayer)"),
        ("regnet_y_400mf", "16 blocks of trunk_output (ResBottleneckBlock)"),
        ("googlenet", "14 blocks (BasicConv2d, Inception, InceptionAux)"),
        ("vgg11", "8 blocks of features (Conv2d, ReLU), 2 blocks of classifier (Linear, ReLU, Dropout)"),
        ("small-cnn", "4 blocks (Conv2d, BatchNorm2d, ReLU)"),
        ("mlp", "4 blocks (Linear, ReLU)"),
        ("tiny-transformer", "2 blocks of blocks (TransformerBlock)"),
    ],
)
def test_repeated_blocks_are_found_by_structure_and_named(model: str, found: str) -> None:
    _, facts = made(a_spec(model=model, checkpointing=True), on_meta=True)
    assert facts[0].partition("; batch norm")[0] == f"checkpointed: {found}"


@pytest.mark.parametrize(
    ("model", "size"),
    [("shufflenet_v2_x0_5", 32), ("squeezenet1_1", 32), ("densenet121", 32), ("small-cnn", None), ("mlp", None),
     ("tiny-transformer", None)],
)  # fmt: skip
def test_checkpointing_changes_no_gradient_and_no_name(model: str, size: int | None) -> None:
    plain = gradients(made(a_spec(model=model, image_size=size))[0])
    again = gradients(made(a_spec(model=model, image_size=size, checkpointing=True))[0])
    assert list(plain) == list(again)
    for name in plain:
        torch.testing.assert_close(again[name], plain[name])


@pytest.mark.parametrize("model", ["vit_b_16", "resnet50"])
def test_checkpointing_lowers_the_peak_by_activations_alone(model: str) -> None:
    plain, again = (simulated(model=model, batch_size=16, checkpointing=on) for on in (False, True))
    assert plain.breakdown is not None
    assert again.breakdown is not None
    assert again.peak_allocated_bytes < 0.8 * plain.peak_allocated_bytes
    assert again.breakdown.weights == plain.breakdown.weights
    assert [fact.partition(":")[0] for fact in again.facts] == ["checkpointed"]


def test_the_librarys_own_switch_comes_first() -> None:
    workload = load(a_spec(model="mlp"))
    workload.checkpoint = lambda: "what the library says"
    _, facts = altered(workload, a_spec(model="mlp", checkpointing=True))
    assert facts == ("checkpointed: what the library says",)


def test_a_model_without_blocks_is_refused() -> None:
    assert "no repeated blocks" in refused(model=FILMED, checkpointing=True).message


# ---- freezing


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (("layer1",), lambda name: not name.startswith("layer1.")),
        (("layer[123]", "conv1"), lambda name: name.startswith(("layer4.", "bn1.", "fc."))),
        (("*.bn?",), lambda name: ".bn" not in name),
        (("*.bias", "bn1.weight"), lambda name: not name.endswith(".bias") and name != "bn1.weight"),
        (("fc.weight",), lambda name: name != "fc.weight"),
    ],
)
def test_patterns_are_of_names_and_of_what_lies_below_them(patterns: tuple[str, ...], left: Any) -> None:
    model = made(a_spec(freeze=patterns), on_meta=True)[0].model
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if left(name)}


def test_gradients_and_optimizer_state_fall_to_the_share_that_is_trained() -> None:
    whole = simulated(model="resnet50", optimizer="adam")
    part = simulated(model="resnet50", optimizer="adam", freeze=("conv1", "bn1", "layer[123]"))
    assert whole.holdings is not None
    assert part.holdings is not None
    trained = 14_964_736 + 2_049_000  # layer4 and fc
    assert f"{trained:,} of 25,557,032 parameters are trained" in part.facts[0]
    assert part.holdings.weights == whole.holdings.weights
    # The allocator's blocks are up to 1 MiB larger than what is asked for.
    for held, of in ((part.holdings, trained), (whole.holdings, 25_557_032)):
        assert held.gradients == pytest.approx(4 * of, rel=0.08)
        assert held.optimizer == pytest.approx(8 * of, rel=0.08)


def test_a_pattern_that_matches_nothing_and_one_that_matches_all_are_refused() -> None:
    said = refused(freeze=("layer1", "layer9"))
    assert said.message == "--freeze layer9 matches no parameter of resnet18"
    assert said.hint == "there are conv1, bn1, layer1, layer2, layer3, layer4, fc"
    assert "nothing of resnet18 to train" in refused(freeze=("*",)).message


# ---- adapters


@needs_peft
@pytest.mark.parametrize(
    ("model", "size", "words"),
    [
        ("resnet18", 32, "20 layers (conv1, conv2, 0) and fc"),
        ("vit_b_32", 32, "24 layers (0, 3) and heads.head"),
        ("swin_t", 32, "27 layers (0, 3, reduction) and head"),
        ("mobilenet_v3_small", 32, None),
        ("tiny-transformer", None, "8 layers (query_key_value, projection, 0, 2) and logits"),
    ],
)
def test_every_adapter_is_trained_and_nothing_else_but_the_head(
    model: str, size: int | None, words: str | None
) -> None:
    workload, (fact,) = made(a_spec(model=model, image_size=size, lora_rank=4), on_meta=True)
    trained = {name for name, p in workload.model.named_parameters() if p.requires_grad}
    assert set(gradients(workload)) == trained
    head = fact.rpartition(";")[0].rpartition(" and ")[2]
    assert {name for name in trained if "lora_" not in name} == {f"{head}.weight", f"{head}.bias"} & {
        name for name, _ in workload.model.named_parameters()
    }
    if words is not None:
        assert fact.partition(";")[0] == f"LoRA: rank 4 on {words}"


@needs_peft
def test_a_language_model_gets_the_adapters_of_pefts_table_and_keeps_its_head() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    workload = Workload(model=model, make_batch=lambda size: (None, None), loss=lambda outputs, targets: outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, (fact,) = altered(workload, a_spec(lora_rank=8))
    before = sum(p.numel() for name, p in model.named_parameters() if "lora_" not in name)
    adapters = 2 * 8 * (64 + 192)  # two layers: rank x (width in + three times the width out)
    assert fact == f"LoRA: rank 8 on 2 layers (c_attn); {adapters:,} of {before + adapters:,} parameters are trained"


@needs_peft
def test_gradients_and_state_of_adapters_are_their_share_on_a_simulated_card() -> None:
    fit = simulated(model="tiny-transformer", lora_rank=8, optimizer="adamw", model_args={"width": 512, "vocab": 64})
    assert fit.holdings is not None
    trained = 4 * int(fit.facts[0].rpartition("; ")[2].partition(" ")[0].replace(",", ""))
    assert fit.holdings.gradients == pytest.approx(trained, rel=0.02)
    assert fit.holdings.optimizer == pytest.approx(2 * trained, rel=0.02)
    assert fit.holdings.weights > 4 * trained


@needs_peft
def test_a_model_without_layers_for_adapters_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workload = Workload(model=nn.LayerNorm(8), make_batch=lambda size: (None, None), loss=lambda o, t: o)
        with pytest.raises(Exception, match="no layers for --lora"):
            altered(workload, a_spec(lora_rank=4))


# ---- accumulation


def test_an_accumulated_step_learns_what_one_batch_teaches(tmp_path: Path, runner: ForkRunner) -> None:
    """Every batch of a trial is the same batch, so the mean over several is one's own gradient."""
    once, thrice = (cpu_trial(runner, tmp_path, model="small-cnn", accumulate=times) for times in (1, 3))
    for first, second in zip(once.steps, thrice.steps, strict=True):
        assert second.loss == pytest.approx(first.loss, rel=1e-4)
    assert thrice.step_seconds is not None
    assert thrice.samples_per_second == pytest.approx(3 * 8 / thrice.step_seconds)


def test_gradients_are_held_while_the_next_micro_batch_runs_and_more_of_them_cost_no_more() -> None:
    peaks = [simulated(model="resnet18", accumulate=times).peak_allocated_bytes for times in (1, 2, 5)]
    weights = 4 * 11_689_512
    assert 0.5 * weights < peaks[1] - peaks[0] <= 1.02 * weights
    assert peaks[2] == peaks[1]


# ---- memory format


@pytest.mark.parametrize(("model", "of"), [("small-cnn", torch.channels_last), (FILMED, torch.channels_last_3d)])
@pytest.mark.parametrize("on_meta", [False, True])
def test_images_and_weights_are_in_the_format_and_targets_as_they_were(
    model: str, of: torch.memory_format, on_meta: bool
) -> None:
    with torch.device("meta" if on_meta else "cpu"):
        workload, _ = altered(load(a_spec(model=model)), a_spec(model=model, channels_last=True))
        inputs, targets = workload.make_batch(4)
    assert inputs.is_contiguous(memory_format=of)
    assert targets.is_contiguous()
    weights = [p for p in workload.model.parameters() if p.dim() == inputs.dim()]
    assert weights
    assert all(weight.is_contiguous(memory_format=of) for weight in weights)


@pytest.mark.parametrize("model", ["mlp", "tiny-transformer"])
def test_a_model_that_takes_no_images_has_no_channels_to_put_last(model: str) -> None:
    assert f"{model} takes none" in refused(model=model, channels_last=True).message


# ---- attention


@pytest.mark.parametrize(
    ("attention", "precision", "growth"),
    [("math", "fp32", 4), ("math", "amp-bf16", 4), ("efficient", "fp32", 2), ("efficient", "amp-bf16", 2),
     ("flash", "amp-bf16", 2)],
)  # fmt: skip
def test_memory_grows_with_the_square_of_the_length_by_math_and_with_the_length_by_fused_kernels(
    attention: str, precision: str, growth: int
) -> None:
    peaks = [
        simulated(
            model="tiny-transformer", attention=attention, precision=precision, model_args={"seq_len": length}
        ).peak_allocated_bytes
        for length in (1024, 2048, 4096)
    ]
    assert (peaks[2] - peaks[1]) / (peaks[1] - peaks[0]) == pytest.approx(growth, rel=0.05)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"model": "resnet18", "attention": "math"}, "resnet18 calls none"),
        ({"model": "mlp", "attention": "efficient", "mode": "inference"}, "mlp calls none"),
        ({"model": ATTENDING, "model_args": {"by_hand": True}, "attention": "math"}, "calls none"),
        (
            {"model": ATTENDING, "model_args": {"mask": "added"}, "attention": "flash", "precision": "amp-bf16"},
            "--attention flash cannot run what",
        ),
        ({"model": ATTENDING, "attention": "flash"}, "in fp32"),
        ({"model": ATTENDING, "attention": "flash", "precision": "amp-fp16", "device": "sim:t4"}, "on sim:t4"),
    ],
)
def test_a_kernel_that_cannot_run_or_that_nobody_calls_is_refused(choices: dict[str, Any], said: str) -> None:
    assert said in refused(**choices).message


@pytest.mark.parametrize("mask", ["none", "added"])
def test_what_can_run_is_not_refused(mask: str) -> None:
    for attention in ("efficient", "math", *(("flash",) if mask == "none" else ())):
        simulated(model=ATTENDING, model_args={"mask": mask}, attention=attention, precision="amp-fp16")


# ---- on the CPU, as trials


@pytest.fixture(scope="module")
def runner() -> Iterator[ForkRunner]:
    with closing(ForkRunner(timeout_s=120)) as one:
        yield one


def cpu_trial(runner: ForkRunner, folder: Path, **choices: Any) -> Fit:
    outcome = runner.run(a_spec(**{"device": "cpu", "batch_size": 8, "steps": 2, **choices}), folder / "trial")
    assert isinstance(outcome, Fit), outcome
    return outcome


@pytest.mark.parametrize(
    "choices",
    [
        {"model": "small-cnn", "checkpointing": True, "channels_last": True, "accumulate": 2, "optimizer": "adamw"},
        {"model": "small-cnn", "freeze": ("0", "3"), "precision": "amp-bf16"},
        {"model": ATTENDING, "attention": "flash"},
        {"model": ATTENDING, "attention": "math"},
    ],
)
def test_the_choices_train_on_the_cpu(runner: ForkRunner, tmp_path: Path, choices: dict[str, Any]) -> None:
    fit = cpu_trial(runner, tmp_path, **choices)
    losses = [step.loss for step in fit.steps]
    assert all(loss is not None for loss in losses)
    assert len(fit.facts) == sum(choices.get(name, False) is not False for name in ("checkpointing", "freeze"))


@needs_peft
def test_adapters_train_on_the_cpu(runner: ForkRunner, tmp_path: Path) -> None:
    assert "LoRA" in cpu_trial(runner, tmp_path, model="small-cnn", lora_rank=2).facts[0]


@pytest.mark.parametrize("choices", [{"model": "small-cnn", "attention": "math"}, {"model": "mlp", "freeze": ("x",)}])
def test_a_refusal_on_the_cpu_is_one_line_before_any_step(
    runner: ForkRunner, tmp_path: Path, choices: dict[str, Any]
) -> None:
    answer = runner.run(a_spec(device="cpu", **choices), tmp_path / "trial")
    assert isinstance(answer, Refused)
    assert "\n" not in answer.message
