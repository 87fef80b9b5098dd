"""Two servers share a fingerprint only if nothing that affects an answer differs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playhead_inference.identity import (
    code_identity,
    digest_files,
    digest_patch,
    kernel_variables,
    model_identity,
    process_identity,
    server_arguments,
)
from playhead_inference.verdict import fingerprint

FILES = {
    "model.safetensors": b"\x00\x01\x02\x03" * 64,
    "config.json": b'{"rope_theta": 10000.0, "rms_norm_eps": 1e-06}',
    "generation_config.json": b'{"temperature": 0.6}',
    "chat_template.jinja": b"{{ messages }}",
    "tokenizer.json": b"{}",
}


def checkpoint(root: Path, **changed: bytes) -> Path:
    root.mkdir()
    for name, content in {**FILES, **changed}.items():
        (root / name).write_bytes(content)
    return root


def config(root: Path, **changed: Any) -> Any:
    """The part of vLLM's configuration that is read."""
    values = {"rope_theta": 10000.0, "rms_norm_eps": 1e-06} | changed.pop("hf", {})
    model = {
        "model": str(root),
        "tokenizer": str(root),
        "revision": None,
        "tokenizer_revision": None,
        "hf_config": SimpleNamespace(to_dict=lambda: values),
        "max_model_len": 4096,
        "logprobs_mode": "raw_logprobs",
        "skip_tokenizer_init": False,
        "get_diff_sampling_param": lambda: changed.get("generation", {"temperature": 0.6}),
    }
    return SimpleNamespace(
        model_config=SimpleNamespace(**{**model, **changed.get("model", {})}),
        load_config=SimpleNamespace(load_format="auto"),
    )


def identity_digest(root: Path, template: str | None = None, **changed: Any) -> str:
    return fingerprint({"model": model_identity(config(root, **changed), template)})


def merge_adapter(weights: bytes) -> bytes:
    """Merging an adapter into the weights changes every byte of a matrix."""
    return bytes((value + 1) % 256 for value in weights[:64]) + weights[64:]


@pytest.mark.parametrize(
    "changed",
    [
        {"model.safetensors": FILES["model.safetensors"][:-1] + b"\x04"},
        {"model.safetensors": merge_adapter(FILES["model.safetensors"])},
        {"config.json": FILES["config.json"].replace(b"1e-06", b"1e-05")},
        {"generation_config.json": b'{"temperature": 0.7}'},
        {"chat_template.jinja": b"{{ messages }} "},
        {"tokenizer.json": b"{} "},
        {"adapter_model.safetensors": b"\x01"},
    ],
    ids=[
        "one weight",
        "a merged adapter",
        "one config value",
        "generation config",
        "chat template",
        "tokenizer",
        "one more file",
    ],
)
def test_one_change_of_a_checkpoint_is_another_fingerprint(changed: dict[str, bytes], tmp_path: Path) -> None:
    same = [identity_digest(checkpoint(tmp_path / name)) for name in ("one", "other")]
    assert same[0] == same[1]
    assert identity_digest(checkpoint(tmp_path / "changed", **changed)) != same[0]


@pytest.mark.parametrize(
    "changed",
    [
        {"hf": {"rope_theta": 500000.0}},
        {"hf": {"rms_norm_eps": 1e-05}},
        {"generation": {"temperature": 0.7}},
        {"model": {"max_model_len": 2048}},
        {"model": {"logprobs_mode": "processed_logprobs"}},
    ],
)
def test_so_is_one_value_that_was_set_on_the_command_line(changed: dict[str, Any], tmp_path: Path) -> None:
    root = checkpoint(tmp_path / "model")
    assert identity_digest(root, **changed) != identity_digest(root)


def test_so_is_a_chat_template_by_its_text_and_not_its_name(tmp_path: Path) -> None:
    root = checkpoint(tmp_path / "model")
    template = tmp_path / "template.jinja"
    template.write_text("{{ one }}")
    before = identity_digest(root, str(template))
    assert before == identity_digest(root, "{{ one }}") != identity_digest(root)
    template.write_text("{{ other }}")
    assert identity_digest(root, str(template)) != before


def test_so_is_one_line_of_the_patch(tmp_path: Path) -> None:
    (tmp_path / "tiles.py").write_text("ROWS = 8\n")
    before = digest_patch(tmp_path)
    (tmp_path / "tiles.py").write_text("ROWS = 16\n")
    assert digest_patch(tmp_path) != before
    (tmp_path / "tiles.py").write_text("ROWS = 8\n")
    assert digest_patch(tmp_path) == before


def test_so_is_a_variable_that_chooses_among_kernels() -> None:
    assert kernel_variables({"ONEDNN_MAX_CPU_ISA": "AVX2", "HOME": "/home/me", "VLLM_CPU_KVCACHE_SPACE": "4"}) == {
        "ONEDNN_MAX_CPU_ISA": "AVX2"
    }
    assert code_identity({"ATEN_CPU_CAPABILITY": "avx2"}) != code_identity({})
    assert code_identity({"VLLM_FLOAT32_MATMUL_PRECISION": "high"}) != code_identity({})
    harmless = {"VLLM_API_KEY": "secret", "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_PORT": "9000"}
    assert code_identity(harmless) == code_identity({})


def test_so_is_another_version_of_any_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer determines the prompt."""
    packages = [SimpleNamespace(name="tokenizers", version="0.22.0"), SimpleNamespace(name="jinja2", version="3")]
    monkeypatch.setattr("playhead_inference.identity.distributions", lambda: packages)
    before = code_identity({})
    packages.reverse()
    assert code_identity({}) == before
    packages[1].version = "0.22.1"
    assert code_identity({}) != before


def test_so_is_an_argument_of_the_server_that_enters_an_answer() -> None:
    given = {
        "port": 9000,
        "max_num_seqs": 64,
        "api_key": ["k"],
        "default_chat_template_kwargs": None,
        "tokenizer_mode": "auto",
    }
    before = server_arguments(SimpleNamespace(**given))
    elsewhere = {**given, "port": 9001, "max_num_seqs": 128, "api_key": ["other"]}
    assert server_arguments(SimpleNamespace(**elsewhere)) == before
    for changed in (
        {"tokenizer_mode": "slow"},
        {"default_chat_template_kwargs": {"thinking": True}},
        {"one_of_tomorrow": 1},
    ):
        assert server_arguments(SimpleNamespace(**{**given, **changed})) != before


def test_a_mixture_of_experts_shares_its_fingerprint_with_no_other_start() -> None:
    """One of three processes with the same files gave other bits."""
    experts, dense = (SimpleNamespace(model_config=SimpleNamespace(is_moe=is_moe)) for is_moe in (True, False))
    assert fingerprint(process_identity(experts)) != fingerprint(process_identity(experts))
    assert process_identity(dense) == {}


def test_what_nothing_is_computed_from_is_left_out(tmp_path: Path) -> None:
    root = checkpoint(tmp_path / "model")
    before = digest_files(root)
    (root / "README.md").write_text("a model")
    (root / ".cache").mkdir()
    (root / ".cache" / "model.lock").write_text("")
    assert digest_files(root) == before


def test_a_checkpoint_without_files_has_no_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no files"):
        digest_files(tmp_path)
