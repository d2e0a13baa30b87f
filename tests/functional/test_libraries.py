"""Models of timm and transformers: found by name, built without their weights, and trained by their own heads."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sweeper.errors import UnknownName, UsageError
from sweeper.listing import listed
from sweeper.model_names import modules_of
from sweeper.runner import ForkRunner
from sweeper.trial import Broken, Fit, ModelReport, Refused, TrialSpec
from sweeper.units import GIB
from sweeper.worker.trial import describe_model
from sweeper.worker.workload import Workload, load

pytest.importorskip("timm", reason="the extra timm is not installed")
pytest.importorskip("transformers", reason="the extra hf is not installed")


def spec(model: str, **choices: Any) -> TrialSpec:
    return TrialSpec(**{"model": model, "batch_size": 2, "device": "sim:h100", "steps": 2, **choices})


def described(model: str, **choices: Any) -> ModelReport:
    report = describe_model(spec(model, **choices))
    assert isinstance(report, ModelReport), report
    return report


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkRunner]:
    """A host that has imported both libraries, offline: no test asks a network."""
    preload = (*modules_of("timm:resnet18", None), *modules_of("hf:gpt2", None), "no_such_module")
    log = tmp_path_factory.mktemp("host") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        host = ForkRunner(timeout_s=120, host_memory_limit_bytes=2 * GIB, log=log, preload=preload)
        with host:
            host.start()
            yield host


# Random, but the same every time; the names of one kind only, so that each library has its share.
SAMPLE = random.Random(1).sample([r for r in listed() if r.name.startswith("timm:") and (r.parameters or 9e9) < 3e7], 3)
SAMPLE += random.Random(1).sample([r for r in listed() if r.name.startswith("hf:")], 3)
SAMPLE += random.Random(1).sample([r for r in listed() if ":" not in r.name], 3)


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.name)
def test_what_is_listed_is_what_is_installed(row: Any) -> None:
    report = described(row.name)
    assert (report.parameters, report.inputs) == (row.parameters, row.inputs)


TINY = {
    "gpt2": {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 16, "vocab_size": 50},
    "bert": {
        "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50,
        "max_position_embeddings": 16,
    },
    "t5": {"num_layers": 2, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2, "vocab_size": 50},
    "bart": {
        "encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "vocab_size": 60, "max_position_embeddings": 32,
    },
    "vit": {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "image_size": 32, "patch_size": 16},
    "whisper": {
        "encoder_layers": 1, "decoder_layers": 1, "d_model": 32, "encoder_attention_heads": 2, "vocab_size": 60,
        "decoder_attention_heads": 2, "max_source_positions": 20, "max_target_positions": 16, "pad_token_id": 1,
        "decoder_start_token_id": 2, "bos_token_id": 1, "eos_token_id": 1,
    },
    "electra": {
        "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50,
        "max_position_embeddings": 16,
    },
    "llama": {
        "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 50,
        "max_position_embeddings": 16,
    },
}  # fmt: skip
CLASSES = [
    ("gpt2", "GPT2LMHeadModel"),
    ("gpt2", "GPT2ForSequenceClassification"),
    ("bert", "BertForMaskedLM"),
    ("bert", "BertForTokenClassification"),
    ("bert", "BertForQuestionAnswering"),
    ("bert", "BertModel"),
    ("t5", "T5ForConditionalGeneration"),
    ("bart", "BartModel"),
    ("vit", "ViTForImageClassification"),
    ("whisper", "WhisperForConditionalGeneration"),
    ("electra", "ElectraForPreTraining"),
    ("llama", None),
]


def tiny(folder: Path, model_type: str, class_name: str | None = None) -> str:
    """The file of a small configuration of ``model_type``."""
    config: dict[str, Any] = {"model_type": model_type, **TINY[model_type]}
    if class_name is not None:
        config["architectures"] = [class_name]
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


@pytest.mark.parametrize(("model_type", "class_name"), CLASSES)
def test_every_head_trains_on_its_batch_and_runs_forward_without_labels(
    tmp_path: Path, model_type: str, class_name: str | None
) -> None:
    choices = {"config": tiny(tmp_path, model_type, class_name), "device": "cpu"}
    workload = load(spec("hf:mine", **choices))
    inputs, _ = workload.make_batch(2)
    loss = workload.loss(workload.forward(workload.model, inputs), None)
    loss.backward()
    assert torch.isfinite(loss)
    # A head's pooler may have no part in the loss.
    missing = [n for n, p in workload.model.named_parameters() if p.requires_grad and p.grad is None]
    assert all("pooler" in name for name in missing)
    without = load(spec("hf:mine", mode="inference", **choices))
    inputs, _ = without.make_batch(2)
    assert not {"labels", "start_positions", "return_loss"} & set(inputs)
    with torch.no_grad():
        assert getattr(without.forward(without.model, inputs), "loss", None) is None


def test_keys_and_values_are_not_kept_unless_asked(tmp_path: Path) -> None:
    config = tiny(tmp_path, "gpt2")

    def cache_of(**model_args: Any) -> Any:
        workload = load(spec("hf:mine", config=config, device="cpu", model_args=model_args))
        return workload.forward(workload.model, workload.make_batch(1)[0]).past_key_values

    assert cache_of() is None
    assert cache_of(use_cache=True) is not None


@pytest.mark.parametrize("model", ["hf:gpt2", "hf:roberta-base", "hf:facebook/opt-125m", "hf:facebook/bart-base"])
def test_a_sequence_beyond_the_positions_is_refused_with_what_makes_it_fit(model: str) -> None:
    least = {"gpt2": {"n_layer": 1}, "bart": {"encoder_layers": 1, "decoder_layers": 1}}
    layers = next((fields for name, fields in least.items() if name in model), {"num_hidden_layers": 1})
    positions = described(model, model_args=layers).positions
    assert positions is not None
    assert described(model, model_args=layers, seq_len=positions).inputs == f"{positions} tokens"
    refused = describe_model(spec(model, model_args=layers, seq_len=positions + 1))
    assert isinstance(refused, Refused)
    assert f"has {positions} positions" in refused.message
    argument, _, value = refused.hint.rpartition(" ")[2].partition("=")
    longer = described(model, model_args={**layers, argument: int(value)}, seq_len=positions + 1)
    assert longer.positions == positions + 1


@pytest.mark.parametrize("model", ["hf:EleutherAI/pythia-70m", "hf:t5-small", "hf:microsoft/deberta-v3-small"])
def test_a_model_without_a_table_of_positions_takes_any_length(model: str) -> None:
    report = described(model, seq_len=5000, model_args={"num_hidden_layers": 1} if "t5" not in model else {})
    assert (report.positions, report.inputs, report.seq_len) == (None, "5000 tokens", 512)


def test_an_argument_is_a_field_of_the_configuration() -> None:
    two, four = (described("hf:gpt2", model_args={"n_layer": layers}).parameters for layers in (2, 4))
    # A layer of GPT-2: 12 width^2 weights, 13 width biases and norms (Radford et al. 2019's blocks).
    assert four - two == 2 * (12 * 768**2 + 13 * 768)
    # Qwen2 has a list with an entry for each layer, which must follow.
    assert described("hf:Qwen/Qwen2-0.5B", model_args={"num_hidden_layers": 2}).parameters < 2e8


@pytest.mark.parametrize(
    ("model", "choices", "message", "hint"),
    [
        ("hf:gpt2", {"model_args": {"n_layers": 2}}, "no argument of gpt2 is called 'n_layers'", "n_layer"),
        ("hf:gpt2", {"model_args": {"n_layer": "x"}}, "n_layer", "correct"),
        ("hf:gpt2", {"image_size": 224}, "takes no images", "leave it out"),
        ("hf:google/vit-base-patch16-224", {"seq_len": 9}, "takes no tokens", "leave it out"),
        ("hf:google/vit-base-patch16-224", {"image_size": 230}, "an image size that 16 divides", "224"),
        ("timm:resnet18", {"seq_len": 9}, "takes no tokens", "leave it out"),
        ("timm:resnet18", {"model_args": {"pretrained": True}}, "takes no pretrained", "random"),
        ("timm:resnet18", {"model_args": {"drop_rat": 0.5}}, "no argument of timm:resnet18", "drop_rate"),
        ("timm:resnet18", {"model_args": {"num_classes": 0}}, "num_classes", "num_classes=4"),
        ("timm:resnet19", {}, "no model of timm is called 'resnet19'", "resnet18"),
        ("timm:vit_tiny_patch16_224", {"image_size": 230}, "230", "224"),
        ("resnet18", {"seq_len": 9}, "takes no tokens", "leave it out"),
        ("tiny-transformer", {"seq_len": 64, "model_args": {"seq_len": 32}}, "given twice", "leave one"),
    ],
)
def test_what_a_model_does_not_take_is_refused(model: str, choices: Any, message: str, hint: str) -> None:
    refused = describe_model(spec(model, **choices))
    assert isinstance(refused, Refused), refused
    assert message in refused.message
    assert hint in refused.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds no JSON object"),
        ("{}", "does not say what it configures"),
        ('{"architectures": ["NoSuchModel"]}', "does not say what it configures"),
        ('{"model_type": "gpt22"}', "no type of model in transformers is called 'gpt22'"),
        ('{"model_type": "detr"}', "no task head that sweeper trains"),
        ('{"model_type": "gpt2", "n_layer": "two"}', "n_layer"),
    ],
)
def test_a_configuration_that_is_none_is_refused_in_words(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError) as refused:
        load(spec("hf:mine", config=str(tmp_path / "config.json"), device="cpu"))
    assert message in refused.value.message


def test_a_class_alone_says_what_a_configuration_is_of(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], **TINY["gpt2"]}))
    assert described("hf:mine", config=str(tmp_path / "config.json")).notes == (
        "GPT2LMHeadModel: causal language model",
    )


@pytest.mark.parametrize(
    ("model", "size"),
    [("timm:vit_tiny_patch16_224", 256), ("timm:swin_tiny_patch4_window7_224", 256), ("timm:resnet18", 97)],
)
def test_an_image_model_takes_another_size(model: str, size: int) -> None:
    report = described(model, image_size=size)
    assert report.inputs == f"3 x {size} x {size}"
    assert report.image_size == 224
    assert report.image_step is not None
    assert size % report.image_step == 0


def test_a_head_that_weights_come_without_is_added() -> None:
    own, ten = (described("timm:vit_small_patch14_dinov2", model_args=a).parameters for a in ({}, {"num_classes": 10}))
    assert own - ten == 990 * (384 + 1)  # weights and biases of a linear layer on 384 channels


def test_the_librarys_own_switch_says_what_it_wraps(tmp_path: Path) -> None:
    mine = load(spec("hf:mine", config=tiny(tmp_path, "gpt2"), device="cpu"))
    assert mine.checkpoint is not None
    assert mine.checkpoint() == "2 of transformers' own blocks (GPT2Block)"
    vit = load(spec("timm:vit_tiny_patch16_224", device="cpu"))
    assert vit.checkpoint is not None
    assert "VisionTransformer" in vit.checkpoint()
    assert getattr(vit.model, "grad_checkpointing", None) is True


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
@pytest.mark.parametrize("model", ["hf:gpt2", "hf:t5-small", "timm:levit_128s"])
def test_a_step_is_simulated_in_a_process_of_its_own(
    runner: ForkRunner, tmp_path: Path, model: str, precision: str
) -> None:
    layers = {"hf:gpt2": {"n_layer": 2}, "hf:t5-small": {"num_layers": 2}}.get(model, {})
    outcome = runner.run(spec(model, precision=precision, model_args=layers), tmp_path / "trial")
    assert isinstance(outcome, Fit), outcome


def test_thirteen_billion_parameters_are_simulated_within_two_gibibytes(runner: ForkRunner, tmp_path: Path) -> None:
    # The runner ends a trial that takes more of the host, and that would be Broken.
    outcome = runner.run(spec("hf:meta-llama/Llama-2-13b-hf", precision="bf16", batch_size=1), tmp_path / "trial")
    assert isinstance(outcome, Fit), outcome
    assert outcome.holdings is not None
    assert outcome.holdings.weights >= 2 * 13_015_864_320


def test_a_name_in_no_table_is_refused_where_the_hub_cannot_be_reached(runner: ForkRunner, tmp_path: Path) -> None:
    refused = runner.run(spec("hf:gtp2"), tmp_path / "trial")
    assert isinstance(refused, Refused), refused
    assert "cannot be reached" in refused.message
    assert "--config FILE.json" in refused.hint
    assert "gpt2" in refused.hint


def test_a_long_sequence_is_longer_in_the_teaching_transformer() -> None:
    def tokens(model: str, **choices: Any) -> int | None:
        with torch.device("meta"):
            return load(spec(model, **choices)).tokens

    assert [tokens("tiny-transformer", seq_len=n) for n in (None, 64)] == [128, 64]
    assert tokens("tiny-transformer", model_args={"seq_len": 32}) == 32
    assert tokens("mlp") is None


@pytest.mark.parametrize("model", ["resnet18", "vit_b_16", "maxvit_t", "inception_v3"])
def test_the_least_image_is_taken_and_one_step_less_is_refused(model: str) -> None:
    report = described(model)
    least, step = report.image_least, report.image_step
    assert least is not None
    assert step is not None
    assert described(model, image_size=least).inputs == f"3 x {least} x {least}"
    assert described(model, image_size=least + step).inputs == f"3 x {least + step} x {least + step}"
    if least > step:
        with pytest.raises(UsageError):
            _built(model, least - step)


def _built(model: str, image_size: int) -> Workload:
    with torch.device("meta"):
        return load(spec(model, image_size=image_size))


def test_a_misspelled_name_of_timm_is_an_unknown_name() -> None:
    with pytest.raises(UnknownName):
        _built("timm:resnet18x", 224)


def test_the_host_is_alive_after_a_module_that_is_not_there(runner: ForkRunner, tmp_path: Path) -> None:
    assert not isinstance(runner.run(spec("small-cnn"), tmp_path / "trial"), Broken)
