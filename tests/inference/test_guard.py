"""Untested configurations are not served."""

from dataclasses import replace

import pytest
from playhead_inference.guard import UNTESTED, Facts, refusals

CPU = Facts(
    device="cpu",
    dtype="float32",
    heads=8,
    kv_heads=4,
    attention=None,
    eager=True,
    mode=False,
    moe=True,
    prefix_caching=True,
    features={},
)
GPU = replace(CPU, device="cuda", dtype="bfloat16", attention="TRITON_ATTN", mode=True, moe=False)


@pytest.mark.parametrize("facts", [CPU, GPU], ids=["cpu", "gpu"])
def test_what_was_tested_may_try_to_prove_itself(facts: Facts) -> None:
    assert refusals(facts) == ()


@pytest.mark.parametrize("facts", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("feature", UNTESTED)
def test_each_untested_feature_is_refused_by_its_name(facts: Facts, feature: str) -> None:
    assert refusals(replace(facts, features={feature: True})) == (f"{UNTESTED[feature]} was not tested",)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(CPU, mode=True), "VLLM_BATCH_INVARIANT must be unset"),
        (replace(CPU, dtype="bfloat16"), "bfloat16 was not tested"),
        (replace(CPU, eager=False), "--enforce-eager"),
        (replace(GPU, eager=False), "--enforce-eager"),
        (replace(CPU, attention="TORCH_SDPA"), "leave --attention-backend out"),
        (replace(CPU, heads=32, kv_heads=1), "32 heads over 1 KV heads"),
        (replace(GPU, mode=False), "VLLM_BATCH_INVARIANT=1 must be set"),
        (replace(GPU, attention="FLASHINFER"), "TRITON_ATTN"),
        (replace(GPU, attention=None), "TRITON_ATTN"),
        (replace(GPU, moe=True), "prefix caching"),
    ],
)
def test_a_known_hole_is_refused_with_what_to_do(facts: Facts, words: str) -> None:
    (reason,) = refusals(facts)
    assert words in reason
