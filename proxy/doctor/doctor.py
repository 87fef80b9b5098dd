"""Probe which clients of this machine use the proxy, distrust its certificate, or bypass it.

A recording is complete only if no client bypasses the proxy. Environment variables cannot guarantee that, so each client
is tested.
"""

import asyncio
import os
import re
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from proxy.doctor.client_probes import PROBE_TIMEOUT, PROBES, Probe, Tools, client_kind, command_tools
from proxy.doctor.probe_servers import HOST, Echo, run_tap
from proxy.errors import Failure
from proxy.trust.client_environment import proxy_url_for_run, proxy_variables

type Verdict = Literal["through", "untrusted", "escapes", "missing", "unclear", "impossible"]

NOT_INSTALLED = 42
MAX_CONCURRENT = 2
RUN = "playhead-doctor"

CAPTIVE = "any client of a captive command"
CAPTIVE_PROBE = """
import socket, sys
with socket.create_connection((sys.argv[1], 80), 10) as connection:
    connection.sendall(f"GET /{sys.argv[2]} HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\nConnection: close\\r\\n\\r\\n".encode())
    sys.exit(not connection.recv(4096).startswith(b"HTTP/1.1 200"))
"""

VERDICT_TEXTS: Mapping[Verdict, str] = {
    "through": "goes through",
    "untrusted": "does not trust us",
    "escapes": "ESCAPES",
    "missing": "not installed",
    "unclear": "unclear",
    "impossible": "not possible here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedWorker:
    """A running worker that connects to `echo` in place of HOST (`[upstreams]`)."""

    proxy: str
    ca: str | Path
    ca_bundle: str | Path
    echo: Echo
    token: str | None = None
    truststore: str | Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFinding:
    """The finding on one client."""

    client: str
    verdict: Verdict
    version: str | None = None
    names_run: bool | None = None
    """Whether the client sent the run's credentials; without them its calls are attributed by other evidence. None: it
    sent nothing to the proxy."""

    fix: str | None = None
    said: str | None = None
    """The last line of the client's error output, if it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTrial:
    """How a client's process ended: its exit status and output."""

    status: int
    out: str = ""
    error: str = ""
    has_begun: bool = True
    """Whether it got as far as sending its request, as far as it reports that."""


async def examine_clients(
    worker: ProbedWorker, base: Mapping[str, str], command: Sequence[str] = (), probes: Sequence[Probe] = PROBES
) -> tuple[ClientFinding, ...]:
    """Probe every client that `command` could use, or that is on the PATH of `base`, with a request for HOST."""
    tools = command_tools(command, base)
    turns = asyncio.Semaphore(MAX_CONCURRENT)

    async def probe_in_turn(probe: Probe) -> ClientFinding:
        async with turns:
            return await _probe_client(probe, worker, base, tools)

    return tuple(await asyncio.gather(*map(probe_in_turn, probes)))


async def examine_captive(worker_info: Mapping[str, Any], echo: Echo, token: str | None) -> ClientFinding:
    """Run a command captive, without proxy variables, and see where its request arrives. `worker_info`: what the worker says of itself."""
    # Imported here, because only commands that run other commands need it.
    from proxy.capture.command import CommandPlan, IsolationOptions, run_command

    name = secrets.token_hex(8)
    work = CommandPlan(
        command=[sys.executable, "-I", "-S", "-c", CAPTIVE_PROBE, HOST, name],
        worker_info=worker_info,
        run=RUN,
        token=token,
        passes_other_traffic=True,
        isolation=IsolationOptions(mode="require"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            ran = await run_command(work)
    except Failure as failure:
        return ClientFinding(client=CAPTIVE, verdict="impossible", fix=str(failure.__cause__ or failure))
    except TimeoutError:
        return ClientFinding(client=CAPTIVE, verdict="unclear", said=f"gave no answer within {PROBE_TIMEOUT:.0f} s")
    if ran.code == 0 and echo.has_seen(name):
        # A network namespace does not hold unix sockets.
        reason = ran.not_watched_reason
        unnoticed = f"connections to unix sockets are not noticed: {reason}" if reason else None
        return ClientFinding(client=CAPTIVE, verdict="through", names_run=True, fix=unnoticed)
    return ClientFinding(client=CAPTIVE, verdict="unclear", said=f"its request did not arrive: exit status {ran.code}")


def is_every_client_recorded(findings: Sequence[ClientFinding]) -> bool:
    """Whether every client that is installed goes through the proxy."""
    return all(finding.verdict in ("through", "missing", "impossible") for finding in findings)


def findings_for_command(
    command: Sequence[str], base: Mapping[str, str], findings: Sequence[ClientFinding]
) -> list[ClientFinding]:
    """Return the findings on the clients that a command is known to use. For a shell script none is known."""
    kind = client_kind(command, base)
    return [finding for finding in findings if finding.client.partition(" ")[0] == kind]


def finding_rows(findings: Sequence[ClientFinding]) -> list[tuple[str, ...]]:
    """Return the rows of a table: client, verdict, whether it names its run, what to do."""
    return [
        (
            f"{finding.client} {finding.version or ''}".strip(),
            VERDICT_TEXTS[finding.verdict],
            {True: "yes", False: "no", None: ""}[finding.names_run],
            finding.fix or "",
        )
        for finding in sorted(findings, key=lambda each: each.verdict == "missing")
    ]


def findings_json(findings: Sequence[ClientFinding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]


async def _probe_client(probe: Probe, worker: ProbedWorker, base: Mapping[str, str], tools: Tools) -> ClientFinding:
    token = secrets.token_hex(8)
    line = probe.command(tools, f"https://{HOST}/{token}")
    if line is None:
        return ClientFinding(client=probe.client, verdict="missing")
    async with run_tap(worker.proxy) as tap:
        proxy = proxy_url_for_run(f"http://127.0.0.1:{tap.port}", RUN, worker.token)
        proxy_environment = proxy_variables(
            proxy=proxy, ca=worker.ca, ca_bundle=worker.ca_bundle, base=base, run=RUN, truststore=worker.truststore
        )
        trial = await _run_client(line, {**base, **proxy_environment})
    if probe.prints_version and _printed_version(trial.out) is None:
        trial = replace(trial, has_begun=False)
    verdict = client_verdict(
        trial, is_at_worker=bool(tap.users), is_refused=bool(tap.refusal), is_at_echo=worker.echo.has_seen(token)
    )
    return ClientFinding(
        client=probe.client,
        verdict=verdict,
        version=_printed_version(trial.out),
        names_run=RUN in tap.users if tap.users else None,
        fix=_suggested_fix(probe, verdict),
        said=_failure_message(trial, tap.refusal) if trial.status and verdict != "missing" else None,
    )


def client_verdict(trial: ClientTrial, *, is_at_worker: bool, is_refused: bool, is_at_echo: bool) -> Verdict:
    """Judge by what the servers observed, not by the client's output."""
    if trial.status == NOT_INSTALLED:
        return "missing"
    if is_at_echo:
        return "through" if trial.status == 0 else "unclear"
    if is_at_worker:
        return "unclear" if is_refused else "untrusted"
    # A client that failed without reaching the worker bypassed it, unless it failed before its request.
    return "escapes" if trial.status and trial.has_begun else "unclear"


def _suggested_fix(probe: Probe, verdict: Verdict) -> str | None:
    match verdict:
        case "escapes":
            return probe.escape_fix
        case "untrusted":
            return probe.trust_fix
        case "unclear":
            return "test it by hand: playhead record -- …, then playhead show last"
        case "through" | "missing" | "impossible":
            return None


async def _run_client(line: Sequence[str], environment: Mapping[str, str]) -> ClientTrial:
    """Run a client to its end or until its timeout, and kill its process group then."""
    process = await asyncio.create_subprocess_exec(
        *line,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            out, error = await process.communicate()
    except TimeoutError:
        return ClientTrial(status=-signal.SIGKILL, error=f"gave no answer within {PROBE_TIMEOUT:.0f} s")
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return ClientTrial(
        status=process.returncode or 0, out=out.decode("utf-8", "replace"), error=error.decode("utf-8", "replace")
    )


def _printed_version(out: str) -> str | None:
    first = out.partition("\n")[0].strip()
    return first if re.fullmatch(r"\d+(\.\w+)+\S*", first) else None


def _failure_message(trial: ClientTrial, refusal: str | None) -> str | None:
    if refusal:
        return f"the worker answered: {refusal}"
    lines = [line.strip() for line in trial.error.splitlines() if line.strip()]
    return lines[-1][:200] if lines else None
