"""The model server whose answers do not depend on their company: its environment, and one run of it.

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
from proxy.house import reachable
from proxy.ports import free
from proxy.settings import LOOPBACK

type Device = Literal["cpu", "gpu"]

ROOT: Final = Path(__file__).resolve().parent.parent / "inference"
PYTHONS: Final[Mapping[Device, str]] = {"cpu": "3.11", "gpu": "3.12"}
TORCH: Final = "https://download.pytorch.org/whl/cpu"
"""Where torch for CPUs is published; PyPI's is built for CUDA."""

GRACE: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
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
    _run([uv, "pip", "sync", "--python", python, *found, *source, str(lock)])
    _run([uv, "pip", "install", "--python", python, "--no-deps", "--reinstall", str(ROOT)])
    if device == "cpu" and ctypes.util.find_library("numa") is None:
        raise Failure("vLLM's kernels for CPUs need libnuma, which is not here: apt-get install libnuma1")


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


def command(place: Path, serving: Serving, port: int) -> list[str]:
    """How the server is started."""
    own = ["--model", serving.model, "--host", serving.host, "--port", str(port)]
    own += ["--max-model-len", str(serving.context)]
    # What the guard asks for; it would refuse anything else and say so.
    own += (
        ["--dtype", "float32", "--enforce-eager"] if serving.device == "cpu" else ["--attention-backend", "TRITON_ATTN"]
    )
    return [str(place / "bin" / "python"), "-m", "playhead_inference", *own, *serving.extra]


def environment(serving: Serving, base: Mapping[str, str]) -> dict[str, str]:
    """What the server finds in its environment; vLLM reads much of it on import."""
    ours = {"VLLM_NO_USAGE_STATS": "1", "PLAYHEAD_TETHERED": "1", "PYTHONSAFEPATH": "1"}
    ours["PLAYHEAD_INVARIANCE"] = "degrade" if serving.degrade else "require"
    if serving.device == "gpu":
        return {**base, **ours, "VLLM_BATCH_INVARIANT": "1", "PLAYHEAD_KERNELS": serving.kernels}
    threads = {
        "VLLM_CPU_KVCACHE_SPACE": str(serving.cache_gib),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(serving.threads),
        "OMP_DYNAMIC": "FALSE",
    }
    # vLLM's own mode fails on a CPU at the first forward pass.
    return {name: value for name, value in base.items() if name != "VLLM_BATCH_INVARIANT"} | ours | threads


async def serve(place: Path, serving: Serving, say: Callable[[str], None]) -> None:
    """Run until SIGTERM or Ctrl-C. Prints one ready line on stdout once the claim is checked. Raises Failure."""
    if not (place / "bin" / "python").exists():
        raise Failure(f"there is no environment in {place}; make it with: playhead inference setup")
    if serving.host not in LOOPBACK and not os.environ.get("VLLM_API_KEY"):
        raise Failure(f"listening on {serving.host} lets other machines in: set VLLM_API_KEY first")
    port = free(serving.host, serving.port)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    say(f"starting vLLM with {serving.model}; it checks itself before it answers")
    process = await asyncio.create_subprocess_exec(
        *command(place, serving, port),
        # Its stdin stays open for as long as it shall live; its words are for people.
        stdin=asyncio.subprocess.PIPE,
        stdout=2,
        env=environment(serving, os.environ),
        start_new_session=True,
    )
    try:
        await _until_stopped(process, f"http://{reachable(serving.host)}:{port}", serving.degrade, stopped)
    finally:
        await _stop(process)


async def _until_stopped(process: asyncio.subprocess.Process, url: str, degrade: bool, stopped: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        watched = group.create_task(_died(process))
        announced = group.create_task(_announced(url, degrade))
        await stopped.wait()
        watched.cancel()
        announced.cancel()


async def _died(process: asyncio.subprocess.Process) -> None:
    """Raises Failure when it ends before it is told to."""
    raise Failure(f"the model server ended with {await process.wait()}; its last words are above")


async def _announced(url: str, degrade: bool) -> None:
    click.echo(await _checked(url, degrade))


async def _checked(url: str, degrade: bool) -> str:
    """Wait until it answers, and see that it is patched and says so. Raises Failure where it is not."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10.0) as client:
        await _answering(client)
        answer = await client.get("/batch_invariance")
    try:
        report = answer.json() if answer.status_code == 200 else {}
    except json.JSONDecodeError:
        report = {}
    return ready(url, report, answer.headers.get("x-batch-invariant"), degrade)


def ready(url: str, report: Mapping[str, Any], header: str | None, degrade: bool) -> str:
    """The ready line. Raises Failure where the server does not show that it is patched: then it must not be used."""
    verdict = report.get("verdict")
    if verdict is None or header is None:
        raise Failure(f"the server at {url} answers but is not patched: it has no /batch_invariance; it was stopped")
    if (verdict != "holds" or header != "true") and not degrade:
        raise Failure(f"the server at {url} does not hold ({verdict}); it was stopped. With --degrade it is served")
    return f"ready inference={url} invariance={verdict} fingerprint={report['fingerprint']}"


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
