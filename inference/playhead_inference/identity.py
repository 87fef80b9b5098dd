"""Identify what the bits of an answer depend on besides the request: the checkpoint, the configuration and the code.

The weights are read from their files. vLLM packs them in memory into another layout, which leaves the tensors of packed
linear layers empty.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any, Final

from playhead_inference.versions import NAMES

PIECE: Final = 1 << 22

IGNORED: Final = frozenset((".md", ".png", ".jpg", ".svg", ".lock"))
"""Suffixes of files in a checkpoint that do not affect computation."""

VARIABLES: Final = (
    "ATEN_CPU_",
    "DNNL_",
    "ONEDNN_",
    "MKL_",
    "NVIDIA_",
    "CUBLAS_",
    "TORCH",
    "VLLM_",
    "OMP_",
    "KMP_",
    "GOMP_",
)
"""Prefixes of environment variables that may select kernels or change a prompt."""

HARMLESS: Final = frozenset(
    """
    VLLM_CPU_KVCACHE_SPACE VLLM_API_KEY VLLM_PLUGINS VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_USAGE_SOURCE VLLM_CACHE_ROOT
    VLLM_CONFIG_ROOT VLLM_ASSETS_CACHE VLLM_CONFIGURE_LOGGING VLLM_HOST_IP VLLM_PORT VLLM_RPC_BASE_PATH VLLM_RPC_TIMEOUT
    VLLM_ENGINE_READY_TIMEOUT_S VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_ENABLE_V1_MULTIPROCESSING
    VLLM_WORKER_MULTIPROC_METHOD TORCH_LOGS TORCH_HOME TORCHDYNAMO_DISABLE OMP_WAIT_POLICY OMP_DISPLAY_ENV
    """.split()  # noqa: SIM905 # a list of words
)
"""Variables with these prefixes that do neither, and one that holds a secret."""

LOGGING: Final = "VLLM_LOGGING_"

IRRELEVANT: Final = frozenset(
    """
    model model_tag tokenizer served_model_name revision tokenizer_revision code_revision hf_token download_dir config headless
    chat_template host port grpc_port uds root_path api_key api_server_count ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs
    ssl_ciphers enable_ssl_refresh allow_credentials allowed_origins allowed_methods allowed_headers uvicorn_log_level
    disable_uvicorn_access_log disable_access_log_for_endpoints disable_log_stats enable_log_requests enable_log_outputs
    enable_log_deltas log_config_file log_error_stack max_log_len aggregate_engine_logging disable_fastapi_docs
    enable_offline_docs enable_server_load_tracking enable_request_id_headers max_num_seqs max_num_batched_tokens
    max_num_partial_prefills max_long_partial_prefills long_prefill_token_threshold enable_chunked_prefill
    enable_prefix_caching prefix_caching_hash_algo num_gpu_blocks_override gpu_memory_utilization kv_cache_memory_bytes
    scheduling_policy shutdown_timeout worker_extension_cls
    """.split()  # noqa: SIM905 # likewise
)
"""Arguments of vLLM that do not affect answers, or whose content is digested elsewhere."""


def digest_files(root: Path) -> str:
    """A digest of the names and contents of a checkpoint's files. Raises ValueError if there are none."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and _is_relevant(path.relative_to(root)))
    if not files:
        raise ValueError(f"{root} has no files, so the model has no fingerprint")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()} {_digest_file(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _is_relevant(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts) and path.suffix.lower() not in IGNORED


def _digest_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def digest_patch(root: Path = Path(__file__).parent) -> str:
    """A digest of this package's source files."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()} {_digest_file(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def digest_value(value: Any) -> str:
    """A digest of a JSON value, or of any other value by its string."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def kernel_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that may affect an answer."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(VARIABLES) and name not in HARMLESS and not name.startswith(LOGGING)
    }


def model_identity(config: Any, chat_template: str | None) -> dict[str, Any]:
    """Digests of the checkpoint and of the configuration that affects answers. Raises ValueError without local files."""
    model = config.model_config
    roots = dict.fromkeys(
        (
            checkpoint_directory(model.model, model.revision),
            checkpoint_directory(model.tokenizer, model.tokenizer_revision),
        )
    )
    return {
        "checkpoint": [digest_files(root) for root in roots],
        "config": digest_value(
            {
                "model": model.hf_config.to_dict(),
                "max_model_len": model.max_model_len,
                "logprobs_mode": model.logprobs_mode,
                "load_format": config.load_config.load_format,
                "skip_tokenizer_init": model.skip_tokenizer_init,
            }
        ),
        "generation": digest_value(model.get_diff_sampling_param()),
        "chat_template": digest_value(_template_text(chat_template)),
    }


def server_arguments(args: Any) -> str:
    """A digest of the parsed arguments of vLLM's server (or None), without those that do not affect answers."""
    given = {} if args is None else vars(args)
    return digest_value({name: value for name, value in given.items() if name not in IRRELEVANT})


def checkpoint_directory(name: str, revision: str | None) -> Path:
    """The directory with a model's files. Raises ValueError if they are not on this machine."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"the files of {name} are not on this machine, so they have no fingerprint: {error}"
        ) from error


def process_identity(config: Any) -> dict[str, str]:
    """A random identity for each process of a model whose processes were seen to differ in their bits.

    With a mixture of experts, one process in three differed (vllm-cpu 0.32.0, patched or not); the cause is not known. So
    such a model gets a new fingerprint at each start: its verdict is not cached, and records are not compared with it.
    """
    return {"process": secrets.token_hex(8)} if config.model_config.is_moe else {}


def _template_text(given: str | None) -> str | None:
    """The text of a chat template, which may be given as a file name."""
    try:
        return Path(given).read_text("utf-8") if given and Path(given).is_file() else given
    except OSError:
        # Too long for a file name, so it is the template itself.
        return given


def code_identity(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Digests of the code: this package, vLLM as installed, the versions of all packages, and relevant variables."""
    return {
        "patch": digest_patch(),
        "vllm": _installation_digest(NAMES),
        "packages": digest_value(sorted({(each.name.lower(), each.version) for each in distributions()})),
        "variables": kernel_variables(environment),
    }


def _installation_digest(names: Iterable[str]) -> str | None:
    """A digest of an installation's RECORD, which has a digest of each file."""
    for name in names:
        try:
            return digest_value(distribution(name).read_text("RECORD"))
        except PackageNotFoundError:
            continue
    return None
