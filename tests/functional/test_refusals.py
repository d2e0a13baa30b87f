"""Every choice that cannot be met is refused in one line, before the first trial, and leaves no folder behind."""

from pathlib import Path

import pytest

from tests.functional.conftest import Command

# The command line; what its refusal says.
BY_THE_WORDS = [
    ("--model small-cnn --precision int4", "no precision is called 'int4'"),
    ("--model small-cnn --optimizer lion", "no optimizer is called 'lion'"),
    ("--model small-cnn --mode evaluate", "no mode is called 'evaluate'"),
    ("--model small-cnn --attention ring", "no attention is called 'ring'"),
    ("--model small-cnn --batch-size 4", "--batch-size 4 fixes the batch, which is what is looked for"),
    ("--model small-cnn --image-size 0", "--image-size 0 is too small"),
    ("--model tiny-transformer --seq-len 0", "--seq-len 0 is too small"),
    ("--model small-cnn --accumulate 0", "--accumulate 0 is too small"),
    ("--model small-cnn --lora 0", "--lora 0 is too small"),
    ("--model small-cnn --steps 1", "1 step is too few"),
    ("--model small-cnn --mode inference --optimizer adam", "--optimizer is about training"),
    ("--model small-cnn --mode inference --optimizer-arg lr=1.0", "--optimizer-arg is about training"),
    ("--model small-cnn --mode inference --accumulate 2", "--accumulate is about training"),
    ("--model small-cnn --mode inference --checkpointing", "--checkpointing is about training"),
    ("--model small-cnn --mode inference --freeze blocks", "--freeze is about training"),
    ("--model small-cnn --lora 8 --freeze blocks", "--freeze has nothing left to say"),
    ("--model small-cnn --compile --device cpu", "--compile works on cuda"),
    ("--model small-cnn --compile --device sim:l4", "--compile works on cuda"),
    ("--model small-cnn --precision tf32 --device cpu", "--precision tf32 is a mode of NVIDIA's tensor cores"),
    ("--model small-cnn --precision tf32 --device sim:t4", "--precision tf32 needs compute capability 8.0"),
    ("--model small-cnn --precision fp8 --device sim:a100-40gb", "--precision fp8 needs compute capability 8.9"),
    ("--model small-cnn --alloc-conf max_split_size_mb:64 --device cpu", "--alloc-conf sets PyTorch's CUDA allocator"),
    ("--model small-cnn --alloc-conf no_such_word:1 --device sim:l4", "'no_such_word' is no allocator setting"),
    ("--model tiny-transformer --attention efficient --device cpu", "--attention efficient is a CUDA kernel"),
    ("--model tiny-transformer --attention flash --device sim:l4", "--attention flash takes 16-bit tensors"),
    (
        "--model tiny-transformer --attention flash --precision amp-fp16 --device sim:t4",
        "--attention flash needs compute capability 8.0",
    ),
    ("--model small-cnn --axis colour --max 8", "no axis is called 'colour'"),
    ("--model small-cnn --axis image-size", "how far along image-size?"),
    ("--model small-cnn --axis image-size --max 64 --batches 1,2", "--batches lists batches"),
    ("--model small-cnn --axis image-size --max 64 --image-size 32", "image-size is fixed at 32"),
    ("--model small-cnn --axis image-size --min 64 --max 32", "--min 64 is above --max 32"),
    ("--model small-cnn --axis image-size --max 64 --step 0", "a size is 1 or more"),
]


@pytest.mark.parametrize(
    ("words", "said"), BY_THE_WORDS, ids=lambda value: value if value.startswith("--model") else ""
)
def test_what_cannot_be_met_is_refused(sweep: Command, tmp_path: Path, words: str, said: str) -> None:
    code, out, err = sweep(*words.split())
    assert code == 2
    assert out == ""
    refusal, hint = (line for line in err.splitlines() if not line.startswith("no GPU here"))
    assert refusal.startswith("sweep: ")
    assert said in refusal
    assert hint.startswith("  ")
    assert not (tmp_path / "results").exists()
