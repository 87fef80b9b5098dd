"""Set up and run the bundled batch-invariant vLLM server.

It is a distribution of its own in an environment of its own (`inference/`): from here it is only a process and a URL.
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
from proxy.processes.command_processes import reachable
from proxy.processes.ports import free
from proxy.settings import LOOPBACK

type Device = Literal["cpu", "gpu"]

ROOT: Final = Path(__file__).resolve().parents[2] / "inference"
PYTHONS: Final[Mapping[Device, str]] = {"cpu": "3.11", "gpu": "3.12"}
TORCH: Final = "https://download.pytorch.org/whl/cpu"
"""Where torch for CPUs is published; PyPI's is built for CUDA."""

GRACE: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What to serve, and how."""

    model: str
    device: Device
    host: str
    port: int
    context: int
    threads: int
    cache_gib: int
    degrade: bool
    kernels: str = "vllm"
    """On a GPU: vllm's own of its batch-invariant mode, or `own`, which are ours."""
    stock: bool = False
    """vLLM as it comes, without our patch and without any claim: what a probe compares with."""
    recheck: bool = False
    """Whether to repeat a self-check whose verdict is remembered."""
    extra: tuple[str, ...] = ()
    """Arguments that go to vLLM as they are."""


def home(given: Path | None) -> Path:
    """Where the environment is: as told, as PLAYHEAD_INFERENCE_ENV says, or in the checkout."""
    named = os.environ.get("PLAYHEAD_INFERENCE_ENV")
    return given or (Path(named) if named else ROOT / ".venv")


def set_up(place: Path, device: Device, wheels: Path | None) -> None:
    """Make the environment from its lock. Raises Failure with uv's own words where it cannot."""
    lock = ROOT / f"{device}.lock"
    if not lock.is_file():
        raise Failure(
            f"{lock} is not there: the model server is set up from a checkout of Playhead, not from a package"
        )
    uv = _uv()
    source = () if device == "gpu" else _torch(wheels)
    _run([uv, "venv", "--quiet", "--allow-existing", "--python", PYTHONS[device], str(place)])
    python = str(place / "bin" / "python")
    # The hashes in the lock make it safe to take each package from whichever index has it.
    found = ("--index-strategy", "unsafe-best-match", "--require-hashes")
    try:
        _run([uv, "pip", "sync", "--python", python, *found, *source, str(lock)])
    except Failure as failure:
        raise (_unreachable(failure, wheels) if device == "cpu" else failure) from None
    _run([uv, "pip", "install", "--python", python, "--no-deps", "--reinstall", str(ROOT)])
    if device == "cpu" and ctypes.util.find_library("numa") is None:
        raise Failure("vLLM's kernels for CPUs need libnuma, which is not here: apt-get install libnuma1")


def _unreachable(failure: Failure, wheels: Path | None) -> Failure:
    """What to do where torch for CPUs cannot be had from its index, or is not in the directory that was named."""
    wanted = next(
        line.split()[0] for line in (ROOT / "cpu.lock").read_text("utf-8").splitlines() if line[:7] == "torch=="
    )
    if wheels is None and TORCH in str(failure):
        return Failure(
            f"{wanted} could not be fetched: its index {TORCH} cannot be reached from here ({str(failure)[-300:]}). Put the"
            " wheel into a directory on this machine (on one that reaches the index: `pip download --no-deps --python-version"
            f" {PYTHONS['cpu']} --only-binary=:all: --index-url {TORCH} {wanted} -d DIR`) and run: playhead inference setup"
            " --wheels DIR"
        )
    if wheels is not None and not list(wheels.glob("torch-*.whl")):
        return Failure(f"{wheels} holds no wheel of torch, and {wanted} is needed: put its file there ({failure})")
    return failure


def _torch(wheels: Path | None) -> tuple[str, ...]:
    return ("--find-links", str(wheels)) if wheels else ("--extra-index-url", TORCH)


def _uv() -> str:
    own = ROOT.parent / ".uv" / "bin" / "uv"
    found = os.environ.get("PLAYHEAD_UV") or shutil.which("uv") or (str(own) if own.is_file() else None)
    if found is None:
        raise Failure("no uv was found to make the environment with: install uv, or name it with PLAYHEAD_UV=PATH")
    return found


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Failure(f"`{' '.join(command[1:4])} …` failed: {done.stderr.strip()[-2000:]}")


def command(place: Path, serving: ServerOptions, port: int) -> list[str]:
    """How the server is started."""
    own = ["--model", serving.model, "--host", serving.host, "--port", str(port)]
    own += ["--max-model-len", str(serving.context)]
    # What the guard asks for; it would refuse anything else and say so.
    own += ["--enforce-eager", *(["--dtype", "float32"] if serving.device == "cpu" else [])]
    python = str(place / "bin" / "python")
    if serving.stock:
        # vLLM 0.32.0 on a CPU ends at the first seeded prompt that it computes in chunks.
        whole = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(serving.context, 8192))]
        own += whole if serving.device == "cpu" else []
        return [python, "-m", "vllm.entrypoints.openai.api_server", *own, *serving.extra]
    own += ["--attention-backend", "TRITON_ATTN"] if serving.device == "gpu" else []
    return [python, "-m", "playhead_inference", *own, *serving.extra]


def environment(serving: ServerOptions, base: Mapping[str, str]) -> dict[str, str]:
    """What the server finds in its environment; vLLM reads much of it on import."""
    ours = {"VLLM_NO_USAGE_STATS": "1", "PLAYHEAD_TETHERED": "1", "PYTHONSAFEPATH": "1"}
    ours["PLAYHEAD_INVARIANCE"] = "degrade" if serving.degrade else "require"
    if serving.recheck:
        ours["PLAYHEAD_VERDICTS"] = "off"
    if serving.stock:
        # vLLM loads every plugin that is installed unless some are named; ours ends with its parent, vLLM does not.
        ours = {"VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1", "VLLM_PLUGINS": "none"}
    if serving.device == "gpu":
        mode = {} if serving.stock else {"VLLM_BATCH_INVARIANT": "1", "PLAYHEAD_KERNELS": serving.kernels}
        return {name: value for name, value in base.items() if name != "VLLM_BATCH_INVARIANT"} | ours | mode
    threads = {
        "VLLM_CPU_KVCACHE_SPACE": str(serving.cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(serving.threads),
        "OMP_DYNAMIC": "FALSE",
        # A thread that waits by spinning takes the CPU from the one it waits for, where both share it with other programs.
        "OMP_WAIT_POLICY": base.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
    # vLLM's own mode fails on a CPU at the first forward pass.
    return {name: value for name, value in base.items() if name != "VLLM_BATCH_INVARIANT"} | ours | threads


async def serve(place: Path, serving: ServerOptions, say: Callable[[str], None]) -> None:
    """Run until SIGTERM or Ctrl-C. Prints one ready line on stdout once the claim is checked. Raises Failure."""
    if not (place / "bin" / "python").exists():
        raise Failure(f"there is no environment in {place}; make it with: playhead inference setup")
    if serving.host not in LOOPBACK and not os.environ.get("VLLM_API_KEY"):
        raise Failure(f"listening on {serving.host} lets other machines in: set VLLM_API_KEY first")
    if serving.device == "cpu":
        check_threads(serving.threads, usable_cpus())
    port = free(serving.host, serving.port)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    say(
        f"starting vLLM with {serving.model}, as it comes: nothing is patched, checked or claimed"
        if serving.stock
        else f"starting vLLM with {serving.model}; it checks itself before it answers"
    )
    process = await asyncio.create_subprocess_exec(
        *command(place, serving, port),
        # Its stdin stays open for as long as it shall live; its words are for people.
        stdin=asyncio.subprocess.PIPE,
        stdout=2,
        env=environment(serving, os.environ),
        start_new_session=True,
    )
    try:
        await _until_stopped(process, f"http://{reachable(serving.host)}:{port}", serving, stopped)
    finally:
        await _stop(process)


def usable_cpus() -> int:
    """How many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int, cpus: int) -> None:
    """Raises Failure where there are more threads than CPUs: torch would quietly run fewer, and none of them well."""
    if threads < 1:
        raise Failure(f"--threads {threads} is no number of threads: use 1 or more")
    if threads > cpus:
        raise Failure(
            f"--threads {threads} was asked for and this process may use {cpus} CPUs: use --threads {cpus} or fewer. The"
            " number of threads is part of the fingerprint, so another number is not taken instead"
        )


async def _until_stopped(
    process: asyncio.subprocess.Process, url: str, serving: ServerOptions, stopped: asyncio.Event
) -> None:
    async with asyncio.TaskGroup() as group:
        watched = group.create_task(_died(process))
        announced = group.create_task(_announced(url, serving))
        await stopped.wait()
        watched.cancel()
        announced.cancel()


async def _died(process: asyncio.subprocess.Process) -> None:
    """Raises Failure when it ends before it is told to."""
    raise Failure(f"the model server ended with {await process.wait()}; its last words are above")


async def _announced(url: str, serving: ServerOptions) -> None:
    click.echo(await (_stock(url) if serving.stock else _checked(url, serving.degrade)))


async def _stock(url: str) -> str:
    """Wait until it answers, and see that it is not patched. Raises Failure where it is."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as client:
        await _answering(client)
        answer = await client.get("/batch_invariance")
    if answer.status_code == 200 or "x-batch-invariant" in answer.headers:
        raise Failure(f"the server at {url} was to be stock vLLM and is patched, so it is no control; it was stopped")
    return f"ready inference={url} invariance=none stock=vllm"


async def _checked(url: str, degrade: bool) -> str:
    """Wait until it answers, and see that it is patched and says so. Raises Failure where it is not."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as client:
        await _answering(client)
        answer = await client.get("/batch_invariance")
    try:
        report = answer.json() if answer.status_code == 200 else {}
    except json.JSONDecodeError:
        report = {}
    return ready(url, report, answer.headers.get("x-batch-invariant-fingerprint"), degrade)


def ready(url: str, report: Mapping[str, Any], fingerprint: str | None, degrade: bool) -> str:
    """The ready line. Raises Failure where the server does not show that it is patched: then it must not be used.

    `fingerprint`: what the patched server's headers say.
    """
    verdict = report.get("verdict")
    if verdict is None or fingerprint is None or fingerprint != report.get("fingerprint"):
        raise Failure(f"the server at {url} answers but is not patched: it has no /batch_invariance; it was stopped")
    if verdict != "holds" and not degrade:
        raise Failure(f"the server at {url} does not hold ({verdict}); it was stopped. With --degrade it is served")
    remembered = f" cached={report.get('checked_at')}" if report.get("cached") else ""
    return f"ready inference={url} invariance={verdict} fingerprint={fingerprint}{remembered}"


async def _answering(client: httpx2.AsyncClient) -> None:
    """Ask until it answers; whoever waits for us ends us when the process has ended."""
    while True:
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        await asyncio.sleep(0.5)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Let it end by itself, and its session with it."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        pass
    # Whatever of vLLM's own processes is left.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
