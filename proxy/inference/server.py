"""Set up and run the bundled batch-invariant vLLM server.

The server is a separate distribution in its own environment (`inference/`). This module uses only its process and URL.
"""

import asyncio
import ctypes.util
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
import httpx2

from proxy.errors import Failure
from proxy.processes.command_processes import reachable_host
from proxy.processes.ports import free_port
from proxy.settings import LOOPBACK
from proxy.terminal.hangup import call_when_stopped

type Device = Literal["cpu", "gpu"]

ROOT: Final = Path(__file__).resolve().parents[2] / "inference"
PYTHONS: Final[Mapping[Device, str]] = {"cpu": "3.11", "gpu": "3.12"}
TORCH: Final = "https://download.pytorch.org/whl/cpu"
"""The index of torch for CPUs; PyPI's torch is built for CUDA."""

GRACE: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which model to serve, and how."""

    model: str
    device: Device
    host: str
    port: int
    context: int
    threads: int
    cache_gib: int
    degrade: bool
    kernels: str = "vllm"
    """The kernels on a GPU: `vllm`, those of vLLM's batch-invariant mode, or `own`, Playhead's."""
    stock: bool = False
    """Serve unmodified vLLM, without any claim: the control that a probe compares with."""
    recheck: bool = False
    """Whether to repeat a self-check whose verdict is cached."""
    extra: tuple[str, ...] = ()
    """Arguments that are passed to vLLM unchanged."""


def environment_directory(chosen: Path | None) -> Path:
    """Return the environment's directory: the chosen one, PLAYHEAD_INFERENCE_ENV, or the one in the checkout."""
    configured = os.environ.get("PLAYHEAD_INFERENCE_ENV")
    return chosen or (Path(configured) if configured else ROOT / ".venv")


def set_up_environment(directory: Path, device: Device, wheels: Path | None) -> None:
    """Create the environment from its lock file. Raises Failure with uv's own message."""
    lock = ROOT / f"{device}.lock"
    if not lock.is_file():
        raise Failure(f"{lock} does not exist: set up the model server from a checkout of Playhead, not from a package")
    uv = _find_uv()
    source = () if device == "gpu" else _torch_source(wheels)
    _run_command([uv, "venv", "--quiet", "--allow-existing", "--python", PYTHONS[device], str(directory)])
    python = str(directory / "bin" / "python")
    # The hashes in the lock file make it safe to take each package from any index.
    found = ("--index-strategy", "unsafe-best-match", "--require-hashes")
    try:
        _run_command([uv, "pip", "sync", "--python", python, *found, *source, str(lock)])
    except Failure as failure:
        raise (_torch_failure(failure, wheels) if device == "cpu" else failure) from None
    _run_command([uv, "pip", "install", "--python", python, "--no-deps", "--reinstall", str(ROOT)])
    if device == "cpu" and ctypes.util.find_library("numa") is None:
        raise Failure("vLLM's kernels for CPUs need libnuma, which is not installed: apt-get install libnuma1")


def _torch_failure(failure: Failure, wheels: Path | None) -> Failure:
    """Explain what to do if torch for CPUs is neither available from its index nor in the given directory."""
    requirement = next(
        line.split()[0] for line in (ROOT / "cpu.lock").read_text("utf-8").splitlines() if line[:7] == "torch=="
    )
    if wheels is None and TORCH in str(failure):
        return Failure(
            f"{requirement} could not be fetched: its index {TORCH} cannot be reached from here ({str(failure)[-300:]}). Put the"
            " wheel into a directory on this machine (on one that reaches the index: `pip download --no-deps --python-version"
            f" {PYTHONS['cpu']} --only-binary=:all: --index-url {TORCH} {requirement} -d DIR`) and run: playhead inference setup"
            " --wheels DIR"
        )
    if wheels is not None and not list(wheels.glob("torch-*.whl")):
        return Failure(f"{wheels} holds no wheel of torch, and {requirement} is needed: put its file there ({failure})")
    return failure


def _torch_source(wheels: Path | None) -> tuple[str, ...]:
    return ("--find-links", str(wheels)) if wheels else ("--extra-index-url", TORCH)


def _find_uv() -> str:
    own = ROOT.parent / ".uv" / "bin" / "uv"
    found = os.environ.get("PLAYHEAD_UV") or shutil.which("uv") or (str(own) if own.is_file() else None)
    if found is None:
        raise Failure("uv, which creates the environment, was not found: install it, or set PLAYHEAD_UV=PATH")
    return found


def _run_command(command: Sequence[str]) -> None:
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise Failure(f"`{' '.join(command[1:4])} …` failed: {result.stderr.strip()[-2000:]}")


def server_command(directory: Path, options: ServerOptions, port: int) -> list[str]:
    """Return the command line that starts the server."""
    own = ["--model", options.model, "--host", options.host, "--port", str(port)]
    own += ["--max-model-len", str(options.context)]
    # The server's guard requires these, and refuses to start without them.
    own += ["--enforce-eager", *(["--dtype", "float32"] if options.device == "cpu" else [])]
    python = str(directory / "bin" / "python")
    if options.stock:
        # vLLM 0.32.0 on a CPU ends at the first seeded prompt that it computes in chunks.
        whole = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(options.context, 8192))]
        own += whole if options.device == "cpu" else []
        return [python, "-m", "vllm.entrypoints.openai.api_server", *own, *options.extra]
    own += ["--attention-backend", "TRITON_ATTN"] if options.device == "gpu" else []
    return [python, "-m", "playhead_inference", *own, *options.extra]


def server_environment(options: ServerOptions, base: Mapping[str, str]) -> dict[str, str]:
    """Return the server's environment variables, many of which vLLM reads on import."""
    own_variables = {"VLLM_NO_USAGE_STATS": "1", "PLAYHEAD_TETHERED": "1", "PYTHONSAFEPATH": "1"}
    own_variables["PLAYHEAD_INVARIANCE"] = "degrade" if options.degrade else "require"
    if options.recheck:
        own_variables["PLAYHEAD_VERDICTS"] = "off"
    if options.stock:
        # vLLM loads every installed plugin unless some are named. Unlike stock vLLM, Playhead's ends with its parent.
        own_variables = {"VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1", "VLLM_PLUGINS": "none"}
    if options.device == "gpu":
        mode = {} if options.stock else {"VLLM_BATCH_INVARIANT": "1", "PLAYHEAD_KERNELS": options.kernels}
        return {name: value for name, value in base.items() if name != "VLLM_BATCH_INVARIANT"} | own_variables | mode
    threads = {
        "VLLM_CPU_KVCACHE_SPACE": str(options.cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(options.threads),
        "OMP_DYNAMIC": "FALSE",
        # On a shared CPU a thread that spins while it waits takes the CPU from the thread that it waits for.
        "OMP_WAIT_POLICY": base.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    # vLLM's own mode fails on a CPU at the first forward pass.
    return {name: value for name, value in base.items() if name != "VLLM_BATCH_INVARIANT"} | own_variables | threads


async def serve(directory: Path, options: ServerOptions, announce: Callable[[str], None]) -> None:
    """Run the server until SIGTERM, SIGHUP or Ctrl-C, and print a ready line when its claim is checked. Raises Failure."""
    if not (directory / "bin" / "python").exists():
        raise Failure(f"there is no environment in {directory}: create it with: playhead inference setup")
    if options.host not in LOOPBACK and not os.environ.get("VLLM_API_KEY"):
        raise Failure(f"other machines can reach the server on {options.host}: set VLLM_API_KEY first")
    if options.device == "cpu":
        check_threads(options.threads, usable_cpus())
    port = free_port(options.host, options.port)
    stop = asyncio.Event()
    call_when_stopped(lambda _signal: stop.set())
    announce(
        f"starting unmodified vLLM with {options.model}: nothing is patched, checked or claimed"
        if options.stock
        else f"starting vLLM with {options.model}; it checks itself before it answers"
    )
    process = await asyncio.create_subprocess_exec(
        *server_command(directory, options, port),
        # Its stdin stays open while it is to run. Its output is for people, so it goes to stderr.
        stdin=asyncio.subprocess.PIPE,
        stdout=2,
        env=server_environment(options, os.environ),
        start_new_session=True,
    )
    try:
        await _wait_until_stopped(process, f"http://{reachable_host(options.host)}:{port}", options, stop)
    finally:
        await _stop_process(process)


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int, cpus: int) -> None:
    """Raise Failure if there are more threads than CPUs, of which torch would silently use fewer."""
    if threads < 1:
        raise Failure(f"invalid --threads {threads}: use 1 or more")
    if threads > cpus:
        raise Failure(
            f"--threads {threads} is more than the {cpus} CPUs that this process may use: use --threads {cpus} or fewer."
            " The number of threads is part of the fingerprint, so it is not reduced silently"
        )


async def _wait_until_stopped(
    process: asyncio.subprocess.Process, url: str, options: ServerOptions, stop: asyncio.Event
) -> None:
    async with asyncio.TaskGroup() as group:
        exit_watch = group.create_task(_raise_on_exit(process))
        announcement = group.create_task(_announce_ready(url, options))
        await stop.wait()
        exit_watch.cancel()
        announcement.cancel()


async def _raise_on_exit(process: asyncio.subprocess.Process) -> None:
    """Raise Failure when the server ends by itself."""
    raise Failure(f"the model server ended with status {await process.wait()}: see its output above")


async def _announce_ready(url: str, options: ServerOptions) -> None:
    click.echo(await (_check_stock(url) if options.stock else _check_patched(url, options.degrade)))


async def _check_stock(url: str) -> str:
    """Wait until the server answers, and return its ready line. Raises Failure if it is patched."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as client:
        await _wait_until_healthy(client)
        answer = await client.get("/batch_invariance")
    if answer.status_code == 200 or "x-batch-invariant" in answer.headers:
        raise Failure(f"the server at {url} is patched, and --stock serves vLLM without the patch: it was stopped")
    return f"ready inference={url} invariance=none stock=vllm"


async def _check_patched(url: str, degrade: bool) -> str:
    """Wait until the server answers, and return its ready line. Raises Failure if it is not patched."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as client:
        await _wait_until_healthy(client)
        answer = await client.get("/batch_invariance")
    try:
        report = answer.json() if answer.status_code == 200 else {}
    except json.JSONDecodeError:
        report = {}
    return ready_line(url, report, answer.headers.get("x-batch-invariant-fingerprint"), degrade)


def ready_line(url: str, report: Mapping[str, Any], fingerprint: str | None, degrade: bool) -> str:
    """Return the ready line. Raises Failure if the server does not prove that it is patched.

    `fingerprint`: the fingerprint in the server's response headers.
    """
    verdict = report.get("verdict")
    if verdict is None or fingerprint is None or fingerprint != report.get("fingerprint"):
        raise Failure(f"the server at {url} answers but is not patched: it has no /batch_invariance; it was stopped")
    if verdict != "holds" and not degrade:
        raise Failure(
            f"the server at {url} is not batch-invariant ({verdict}) and was stopped: use --degrade to serve it"
        )
    remembered = f" cached={report.get('checked_at')}" if report.get("cached") else ""
    return f"ready inference={url} invariance={verdict} fingerprint={fingerprint}{remembered}"


async def _wait_until_healthy(client: httpx2.AsyncClient) -> None:
    """Poll until the server answers. The caller cancels this if the process ends."""
    while True:
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        await asyncio.sleep(0.5)


async def _stop_process(process: asyncio.subprocess.Process) -> None:
    """Stop the server, and kill what is left of its process group."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        pass
    # vLLM's child processes may be left.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
