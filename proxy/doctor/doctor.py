"""Find which clients of this machine go through the proxy, distrust its certificate, or escape it, by trying each.

A recording is whole only when nothing goes past it, and no variable can promise that: so prove it, client by client.
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

from proxy.doctor.client_probes import PROBES, TRY_FOR, Probe, Tools, kind_of, tools_of
from proxy.doctor.probe_servers import HOST, Echo, tapping
from proxy.errors import Failure
from proxy.trust.client_environment import addressed, no_proxy, variables

type Verdict = Literal["through", "untrusted", "escapes", "missing", "unclear", "impossible"]

NOT_INSTALLED = 42
AT_ONCE = 2
RUN = "playhead-doctor"

CAPTIVE = "any client of a captive command"
CAPTIVE_PROBE = """
import socket, sys
with socket.create_connection((sys.argv[1], 80), 10) as connection:
    connection.sendall(f"GET /{sys.argv[2]} HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\nConnection: close\\r\\n\\r\\n".encode())
    sys.exit(not connection.recv(4096).startswith(b"HTTP/1.1 200"))
"""

WORDS: Mapping[Verdict, str] = {
    "through": "goes through",
    "untrusted": "does not trust us",
    "escapes": "ESCAPES",
    "missing": "not installed",
    "unclear": "unclear",
    "impossible": "not possible here",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedWorker:
    """A running worker that contacts `echo` in place of HOST (`[upstreams]`)."""

    proxy: str
    ca: str | Path
    ca_bundle: str | Path
    echo: Echo
    token: str | None = None
    truststore: str | Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFinding:
    """What one client did."""

    client: str
    verdict: Verdict
    version: str | None = None
    names_run: bool | None = None
    """Whether the run's credentials came along; without them a call finds its run by other rules. None: nothing came."""

    fix: str | None = None
    said: str | None = None
    """The client's own last words, where it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTrial:
    """What a client left behind: an exit status and its words."""

    status: int
    out: str = ""
    error: str = ""
    began: bool = True
    """Whether it came as far as asking, where it says so."""


async def examine(
    worker: ProbedWorker, base: Mapping[str, str], command: Sequence[str] = (), probes: Sequence[Probe] = PROBES
) -> tuple[ClientFinding, ...]:
    """Let every client that `command` could use (or that is on the PATH of `base`) try to reach HOST through the worker."""
    tools = tools_of(command, base)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(probe: Probe) -> ClientFinding:
        async with turns:
            return await _probed(probe, worker, base, tools)

    return tuple(await asyncio.gather(*map(one, probes)))


async def examine_captive(place: Mapping[str, Any], echo: Echo, token: str | None) -> ClientFinding:
    """Run a command captive, which knows of no proxy, and see where its request arrives. `place`: a worker's own words."""
    # It takes what only commands that run others need.
    from proxy.capture.command import IsolationWish, Work, run_command

    name = secrets.token_hex(8)
    work = Work(
        command=[sys.executable, "-I", "-S", "-c", CAPTIVE_PROBE, HOST, name],
        place=place,
        run=RUN,
        token=token,
        passes_other_traffic=True,
        wish=IsolationWish(isolation="require"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(TRY_FOR):
            ran = await run_command(work)
    except Failure as failure:
        return ClientFinding(client=CAPTIVE, verdict="impossible", fix=str(failure.__cause__ or failure))
    except TimeoutError:
        return ClientFinding(client=CAPTIVE, verdict="unclear", said=f"gave no answer within {TRY_FOR:.0f} s")
    if ran.code == 0 and echo.saw(name):
        return ClientFinding(client=CAPTIVE, verdict="through", names_run=True)
    return ClientFinding(client=CAPTIVE, verdict="unclear", said=f"its request did not arrive: exit status {ran.code}")


def surroundings(base: Mapping[str, str]) -> tuple[str, ...]:
    """What in the user's own environment stands in the way, one sentence each."""
    theirs = base.get("no_proxy") or base.get("NO_PROXY") or ""
    left_out = no_proxy(theirs).left_out
    return tuple(
        f"NO_PROXY holds {entry!r}, which would send model APIs past the recorder: record and replay leave it out; "
        "a shell of yours should too"
        for entry in left_out
    )


def sound(findings: Sequence[ClientFinding]) -> bool:
    """Whether nothing that is installed here escapes or is refused."""
    return all(finding.verdict in ("through", "missing", "impossible") for finding in findings)


def used_by(command: Sequence[str], base: Mapping[str, str], findings: Sequence[ClientFinding]) -> list[ClientFinding]:
    """The clients that a command is known to use, by what starts it. Of a shell script none is known."""
    kind = kind_of(command, base)
    return [finding for finding in findings if finding.client.partition(" ")[0] == kind]


def rows(findings: Sequence[ClientFinding]) -> list[tuple[str, ...]]:
    """A table for a person: client, verdict, whether its run is known, what to do."""
    return [
        (
            f"{finding.client} {finding.version or ''}".strip(),
            WORDS[finding.verdict],
            {True: "yes", False: "no", None: ""}[finding.names_run],
            finding.fix or "",
        )
        for finding in sorted(findings, key=lambda found: found.verdict == "missing")
    ]


def as_json(findings: Sequence[ClientFinding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]


async def _probed(probe: Probe, worker: ProbedWorker, base: Mapping[str, str], tools: Tools) -> ClientFinding:
    token = secrets.token_hex(8)
    line = probe.command(tools, f"https://{HOST}/{token}")
    if line is None:
        return ClientFinding(client=probe.client, verdict="missing")
    async with tapping(worker.proxy) as tap:
        proxy = addressed(f"http://127.0.0.1:{tap.port}", RUN, worker.token)
        ours = variables(
            proxy=proxy, ca=worker.ca, ca_bundle=worker.ca_bundle, base=base, run=RUN, truststore=worker.truststore
        )
        tried = await _tried(line, {**base, **ours})
    if probe.says_version and _version(tried.out) is None:
        tried = replace(tried, began=False)
    verdict = judged(tried, at_worker=bool(tap.users), refused=bool(tap.refused), behind=worker.echo.saw(token))
    return ClientFinding(
        client=probe.client,
        verdict=verdict,
        version=_version(tried.out),
        names_run=RUN in tap.users if tap.users else None,
        fix=_fix(probe, verdict),
        said=_said(tried, tap.refused) if tried.status and verdict != "missing" else None,
    )


def judged(tried: ClientTrial, *, at_worker: bool, refused: bool, behind: bool) -> Verdict:
    """The facts decide, not the client's words."""
    if tried.status == NOT_INSTALLED:
        return "missing"
    if behind:
        return "through" if tried.status == 0 else "unclear"
    if at_worker:
        return "unclear" if refused else "untrusted"
    # Nobody else can have answered; and what broke before it asked says nothing about where it would have asked.
    return "escapes" if tried.status and tried.began else "unclear"


def _fix(probe: Probe, verdict: Verdict) -> str | None:
    match verdict:
        case "escapes":
            return probe.escapes
        case "untrusted":
            return probe.untrusted
        case "unclear":
            return "try it by hand: playhead record -- …, then playhead show last"
        case "through" | "missing" | "impossible":
            return None


async def _tried(line: Sequence[str], environment: Mapping[str, str]) -> ClientTrial:
    """Run it to its end, or for as long as it may; nothing that it started outlives that."""
    process = await asyncio.create_subprocess_exec(
        *line,
        env=dict(environment),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TRY_FOR):
            out, error = await process.communicate()
    except TimeoutError:
        return ClientTrial(status=-signal.SIGKILL, error=f"gave no answer within {TRY_FOR:.0f} s")
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return ClientTrial(
        status=process.returncode or 0, out=out.decode("utf-8", "replace"), error=error.decode("utf-8", "replace")
    )


def _version(out: str) -> str | None:
    first = out.partition("\n")[0].strip()
    return first if re.fullmatch(r"\d+(\.\w+)+\S*", first) else None


def _said(tried: ClientTrial, refused: str | None) -> str | None:
    if refused:
        return f"the worker answered: {refused}"
    lines = [line.strip() for line in tried.error.splitlines() if line.strip()]
    return lines[-1][:200] if lines else None
