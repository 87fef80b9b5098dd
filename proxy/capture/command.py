"""Run a command with its traffic through a proxy worker: captive if the system allows it, else by proxy variables."""

import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import msgspec

from proxy.capture.control_path import effects_path
from proxy.capture.faketime import MovedClock
from proxy.capture.inherited import PROTOCOL as INHERITED
from proxy.capture.inherited import InheritedSocket, inherited_sockets
from proxy.capture.namespace.isolation import Isolation, Kind, NotCaptive
from proxy.capture.pinned import recorded_clock, with_pinned
from proxy.effects.launch import EffectsOptions, effects_environment
from proxy.errors import Failure
from proxy.processes.child_process import UNKNOWN_STATUS, describe_end
from proxy.processes.store_client import Api, path_segment
from proxy.trust.client_environment import (
    captive_environment,
    proxy_url_for_run,
    proxy_variables,
    without_secrets,
    without_system_certificate_file,
)

if TYPE_CHECKING:
    from proxy.capture.namespace.launch import InsideProcess

    # Most commands are captive, and not watched.
    from proxy.capture.watch.watcher import Escape, How

WITHOUT_RULES: Final = "PLAYHEAD_TEST_WITHOUT_NF_TABLES"
"""A variable for tests: if it is set, commands run as on a kernel without nf_tables."""

QUESTIONS: Final = "PLAYHEAD_QUESTIONS"
"""The variable with the questions of the recording that a program replays or continues, as JSON."""

PROJECT: Final = "PLAYHEAD_PROJECT"
"""The variable with the project that clients of the API ask for."""

MOST_QUESTIONS: Final = 100_000
"""Bytes of that variable: Linux takes 128 KiB."""

CAPTIVE_MODULES: Final = (
    *("proxy.capture.namespace.launch", "proxy.capture.namespace.trust_files"),
    "concurrent.futures.thread",
)
"""What a captive command needs once its proxy worker is ready."""

PAST_WORKER: Final = ("unix", "vsock", INHERITED)
"""The protocols of a captive command's connections that do not reach the worker."""

WITHOUT_BYTES: Final = ("unix", "vsock")
"""Those of which it is not known how much passed."""

MAX_SHOWN: Final = 8
"""Destinations that a summary lists."""


class IsolationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The user's options for the isolation of a command."""

    mode: Isolation = "auto"
    allow_local: tuple[tuple[str, int], ...] = ()
    """Services of this machine that a replay may reach."""

    watch: "How" = "seccomp"
    """How to watch a command that is not captive."""


DEFAULT_ISOLATION: Final = IsolationOptions()
"""The options if the user sets none."""


class CommandPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A command, and the proxy worker for its traffic."""

    command: Sequence[str]
    worker_info: Mapping[str, Any]
    """The worker's message that it is ready: proxy, ca, ca_bundle, control."""

    run: str
    token: str | None
    api: str | None = None
    api_token_file: Path | None = None
    """The file with the API's token. The command gets only the path."""

    project: str | None = None
    """The project of the run, for which the command's clients of the API ask."""

    passes_other_traffic: bool
    """Whether traffic that cannot be recorded passes, and the user's NO_PROXY is kept. A replay lets nothing out."""

    isolation: IsolationOptions = DEFAULT_ISOLATION
    effects: EffectsOptions | None = None
    """How effects are recorded or replayed; None: not at all."""

    pinned: Mapping[str, str] | None = None
    """Hash seeds, time zone and locale of a command that is recorded. A replay has those of its recording."""

    has_recorded_clock: bool = True
    """Whether a captive replay has the clock of its recording, where that is possible."""

    stdout: int | None = None
    prepared: "PreparedCommand | None" = None
    """The command's process, if it was started already: without a `stdout` of its own."""


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command."""

    code: int
    isolation: Kind
    not_captive_reason: str | None = None
    """Why the command was not captive, if it should have been."""

    connections: Sequence[Mapping[str, Any]] = msgspec.field(default=())
    """The connections that were not recorded, or were refused, by destination."""

    unresolved_names: Sequence[str] = msgspec.field(default=())
    """The host names that did not resolve for a captive command."""

    real_clock_reason: str = ""
    """Why a captive replay did not have the clock of its recording."""

    has_proxy_variables: bool = False
    """Whether a captive command had proxy variables, because the recorded one had."""

    not_watched_reason: str | None = None
    """Why short connections may have escaped unnoticed."""

    worker_end: str = ""
    """How the command's proxy worker ended, if it failed: connections after that were refused, and are not in the recording."""

    @property
    def escaped_connections(self) -> list[Mapping[str, Any]]:
        """Connections that bypassed the proxy worker."""
        return [one for one in self.connections if one["outcome"] == "escaped"]

    @property
    def refused_connections(self) -> list[Mapping[str, Any]]:
        return [one for one in self.connections if one["outcome"] == "refused"]

    @property
    def passed_connections(self) -> list[Mapping[str, Any]]:
        """Connections on which bytes passed without being recorded, or may have."""
        passed = [one for one in self.connections if one["outcome"] == "passed"]
        return [one for one in passed if one["sent"] or one["received"] or one["protocol"] in WITHOUT_BYTES]


class PreparedCommand:
    """The process that becomes a captive command, started while the command waits for its proxy worker."""

    def __init__(self) -> None:
        self._inside: InsideProcess | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.end()

    async def start(self, isolation: IsolationOptions) -> None:
        """Start it, where the command is going to be captive."""
        if isolation.mode == "off" or sys.platform != "linux":
            return
        from proxy.capture.namespace.launch import InsideProcess

        try:
            self._inside = await InsideProcess.start()
        except OSError:
            pass  # it is tried again when the command is run, and reported

    def take(self) -> "InsideProcess | None":
        """Return the process to whoever ends it from now on; None if there is none."""
        inside, self._inside = self._inside, None
        return inside

    async def end(self) -> None:
        """End the process, if nobody has taken it."""
        if (inside := self.take()) is not None:
            await inside.end()


def import_while_waiting(*modules: str) -> None:
    """Import what is needed once processes are ready, while they start: on another core this takes no time."""
    own = CAPTIVE_MODULES if sys.platform == "linux" else ()
    for name in (*own, *modules):
        import_module(name)


async def run_command(plan: CommandPlan) -> CommandResult:
    """Run a command to its end. Raises Failure if it cannot be started, or cannot be isolated as required."""
    inherited = inherited_sockets(plan.isolation.allow_local)
    result = await _run(plan, inherited)
    reports = [one.passage() if plan.passes_other_traffic else one.refusal() for one in inherited]
    return msgspec.structs.replace(result, connections=[*result.connections, *reports])


async def _run(plan: CommandPlan, inherited: Sequence[InheritedSocket]) -> CommandResult:
    withheld_descriptors = () if plan.passes_other_traffic else [one.descriptor for one in inherited]
    if plan.isolation.mode == "off":
        return await _run_with_variables(plan, withheld_descriptors)
    try:
        return await _run_captive(plan, withheld_descriptors)
    except NotCaptive as reason:
        if plan.prepared is not None:
            await plan.prepared.end()
        if plan.isolation.mode == "require":
            raise Failure(
                f"{plan.command[0]} cannot be isolated here: {reason}; --isolation auto runs it with proxy variables alone"
            ) from reason
        return await _run_with_variables(plan, withheld_descriptors, str(reason))


async def _run_captive(plan: CommandPlan, withheld_descriptors: Sequence[int]) -> CommandResult:
    # These modules import what only Linux has.
    from proxy.capture.namespace.launch import Captive, CapturePlan
    from proxy.capture.namespace.trust_files import AuthorityFiles

    worker_info = plan.worker_info
    if not worker_info.get("control"):
        raise NotCaptive("the proxy worker has no control socket", "restart `playhead up` with this version")
    recorded = worker_info.get("recorded") or {}
    authority = AuthorityFiles(certificate=Path(worker_info["ca"]), java=java_truststore(worker_info["ca_bundle"]))
    capture = CapturePlan(
        control=worker_info["control"],
        run=plan.run,
        token=plan.token,
        authority=authority,
        passes_other_tcp=plan.passes_other_traffic,
        allow_local=plan.isolation.allow_local,
        unresolved_names=recorded.get("unresolved_names", ()),
        services=[one for one in _url_addresses(plan.api or "") if one[0] in ("127.0.0.1", "::1")],
        is_replay=not plan.passes_other_traffic,
        withheld_descriptors=withheld_descriptors,
        may_redirect=WITHOUT_RULES not in os.environ,
        outlives_worker="mode" in worker_info,  # it is the notice of a running `up`, which restarts its workers
    )
    # Clients make other requests behind a proxy: fewer connections ahead of time, other redirects, no HTTP/3.
    has_proxy_variables = bool(recorded.get("proxy_variables"))
    environment = _environment_with_proxy(plan) if has_proxy_variables else _environment_without_proxy(plan)
    clock = recorded_clock(recorded, environment, authority.copies) if plan.has_recorded_clock else MovedClock()
    environment = _with_recorded(plan, environment | dict(clock.variables))
    capture = replace(capture, binds=clock.binds)
    inside = plan.prepared.take() if plan.prepared is not None else None
    async with Captive(plan.command, capture, stdout=plan.stdout, inside=inside) as captive:
        code = await captive.run(environment)
        report = await captive.report()
        return CommandResult(
            code=code,
            isolation="captive",
            connections=report.connections,
            # A fork's own recording has to say that the names of its parent did not resolve.
            unresolved_names=[*dict.fromkeys((*capture.unresolved_names, *report.unresolved_names))],
            not_watched_reason=report.unwatched_reason or None,
            real_clock_reason=clock.why_not,
            has_proxy_variables=has_proxy_variables,
        )


async def _run_with_variables(
    plan: CommandPlan, withheld_descriptors: Sequence[int], not_captive_reason: str | None = None
) -> CommandResult:
    from proxy.capture.watch.watcher import run_watched

    for descriptor in withheld_descriptors:
        os.set_inheritable(descriptor, False)
    environment = command_environment(plan)
    own = [*_own_addresses(plan), *plan.isolation.allow_local]
    # With --isolation off the user has asked for proxy variables alone.
    refuses = not plan.passes_other_traffic and plan.isolation.mode != "off"
    watched = await run_watched(
        plan.command, environment, own, how=plan.isolation.watch, stdout=plan.stdout, refuses=refuses
    )
    return CommandResult(
        code=watched.code,
        isolation="none" if watched.how == "off" else "watched",
        not_captive_reason=not_captive_reason,
        real_clock_reason="the command was not captive" if plan.has_recorded_clock else "",
        not_watched_reason=watched.reason or None,
        connections=[_escape_report(one) for one in watched.escapes],
    )


def _escape_report(escape: "Escape") -> dict[str, Any]:
    """Return a connection past the proxy in the form of the proxy worker's report."""
    from proxy.capture.watch.local_services import is_message_bus

    return {
        "destination": escape.destination,
        "protocol": escape.protocol,
        "outcome": "refused" if escape.is_refused else "escaped",
        # As with a captive command, at a refused bus libraries look by themselves.
        "past_proxy": escape.protocol != "io_uring" and not (escape.is_refused and is_message_bus(escape.destination)),
        "reason": escape.sentence,
        "count": escape.count,
    }


def _own_addresses(plan: CommandPlan) -> Iterator[tuple[str, int]]:
    if control := plan.worker_info.get("control"):
        # The control socket is for a `playhead record` within a recording. In a replay it would lead past the refusals.
        paths = (control, effects_path(control)) if plan.passes_other_traffic else (effects_path(control),)
        yield from ((os.path.realpath(path), 0) for path in paths)
    yield from _url_addresses(*filter(None, (str(plan.worker_info["proxy"]), plan.api)))


def _url_addresses(*urls: str) -> Iterator[tuple[str, int]]:
    for url in urls:
        parts = urlsplit(url)
        if parts.hostname and parts.port:
            yield ("127.0.0.1" if parts.hostname == "localhost" else parts.hostname), parts.port


def command_environment(plan: CommandPlan) -> dict[str, str]:
    """Return the environment of a command that is not captive."""
    return _with_recorded(plan, _environment_with_proxy(plan))


def _environment_without_proxy(plan: CommandPlan) -> dict[str, str]:
    """Return this process's environment for a captive command, whose traffic needs no variables to reach the worker."""
    worker_info = plan.worker_info
    return captive_environment(
        proxy=proxy_url_for_run(str(worker_info["proxy"]), plan.run, plan.token),
        ca=worker_info["ca"],
        ca_bundle=worker_info.get("roots", worker_info["ca_bundle"]),
        base=without_system_certificate_file(os.environ),
        run=plan.run,
        api=plan.api,
        api_token_file=plan.api_token_file,
    )


def _environment_with_proxy(plan: CommandPlan) -> dict[str, str]:
    """Return this process's environment with the variables that send a command's traffic to the worker."""
    worker_info, base = plan.worker_info, without_system_certificate_file(os.environ)
    proxy_environment = proxy_variables(
        proxy=proxy_url_for_run(str(worker_info["proxy"]), plan.run, plan.token),
        ca=worker_info["ca"],
        ca_bundle=worker_info.get("roots", worker_info["ca_bundle"]),
        run=plan.run,
        api=plan.api,
        api_token_file=plan.api_token_file,
        base=base,
        truststore=java_truststore(worker_info["ca_bundle"]),
        bypass=plan.passes_other_traffic,
    )
    return {**without_secrets(base), **proxy_environment}


def _with_recorded(plan: CommandPlan, environment: Mapping[str, str]) -> dict[str, str]:
    """Add what leads a program to the recorded answers of people (`playhead.people` reads them), and to its effects; pin what is pinned."""
    control = plan.worker_info.get("control")
    questions = plan.worker_info.get("questions")
    if plan.project is not None:
        environment = {**environment, PROJECT: plan.project}
    changed = {name: value for name, value in environment.items() if name != QUESTIONS}
    if questions is not None:
        changed[QUESTIONS] = json.dumps(questions)
        if len(changed[QUESTIONS]) > MOST_QUESTIONS:
            raise Failure(
                f"the recording has {len(questions):,} questions to people, which with their answers are longer than"
                f" the {MOST_QUESTIONS:,} bytes that a program can be given"
            )
    recorded = (plan.worker_info.get("recorded") or {}).get("environment")
    if (pinned := plan.pinned or recorded) is not None:
        changed = with_pinned(changed, pinned)
    if plan.effects is None or not control:
        return changed
    return effects_environment(changed, os.environ, control, plan.run, plan.token, plan.effects)


def java_truststore(bundle: str | Path) -> Path | None:
    """Return the CA bundle as a Java truststore, which is created if Java is installed."""
    if shutil.which("java") is None:
        return None
    store = Path(bundle).with_name("truststore.p12")
    if not store.exists() or store.stat().st_mtime < Path(bundle).stat().st_mtime:
        # The import is slow, and only needed when the bundle has changed.
        from proxy.trust.truststore import build_truststore

        part = store.with_suffix(f".{os.getpid()}")
        part.write_bytes(build_truststore(Path(bundle).read_bytes()))
        part.replace(store)
    return store


def isolation_lines(ran: CommandResult, *, is_replay: bool, reported: Collection[str] = ()) -> Iterator[str]:
    """Yield a summary's lines on isolation: why there was none, what passed, what was refused and how to allow it.

    `reported`: the destinations whose refusal is already in the report of a replay.
    """
    if ran.worker_end:
        yield _worker_sentence(ran.worker_end)
    if ran.not_captive_reason:
        yield f"not isolated: {ran.not_captive_reason}"
    if ran.not_watched_reason:
        what = (
            "connections to unix sockets were" if ran.isolation == "captive" else "short connections past the proxy may"
        )
        verb = "not noticed" if ran.isolation == "captive" else "not have been noticed"
        yield f"{what} {verb}: {ran.not_watched_reason}"
    if ran.escaped_connections:
        yield f"WENT PAST THE PROXY, and is not in the recording: {_list_destinations(ran.escaped_connections)}"
        yield from _escape_fixes(ran.escaped_connections, is_replay=is_replay)
    if ran.passed_connections and not is_replay:
        yield f"passed unrecorded: {_list_destinations(ran.passed_connections)}"
    refused = [one for one in ran.refused_connections if not _is_quic(one)]
    if unnamed := [one for one in refused if one["destination"] not in reported]:
        yield f"refused: {_list_destinations(unnamed)}"
    if is_replay:
        yield from _local_fixes(refused)


def store_escapes(api: Api, run: str, ran: CommandResult) -> None:
    """Store each destination that was reached past the proxy worker as a gap of the run."""
    # The worker has stored the gaps of the TCP connections that it passed.
    past = [*ran.escaped_connections, *(one for one in ran.passed_connections if one["protocol"] in PAST_WORKER)]
    gaps = [{"reason": one["reason"], "count": one["count"]} for one in past]
    if ran.worker_end:
        gaps.append({"reason": _worker_sentence(ran.worker_end), "count": 1})
    if gaps:
        api.post(f"/runs/{path_segment(run)}/gaps", json={"gaps": gaps})


def with_worker_ends(ran: CommandResult, statuses: Collection[int]) -> CommandResult:
    """Add how the command's proxy worker ended, by the exit statuses of its workers."""
    failed = next((status for status in statuses if status not in (0, UNKNOWN_STATUS)), None)
    return ran if failed is None else msgspec.structs.replace(ran, worker_end=describe_end(failed))


def _worker_sentence(end: str) -> str:
    return f"the proxy worker {end}: what the command asked after that was refused, and is not recorded"


def _list_destinations(connections: Sequence[Mapping[str, Any]]) -> str:
    listed = ", ".join(_describe_connection(one) for one in connections[:MAX_SHOWN])
    return listed + (f" and {len(connections) - MAX_SHOWN} more" if len(connections) > MAX_SHOWN else "")


def _describe_connection(one: Mapping[str, Any]) -> str:
    sizes = (
        f" ({one['sent']:,} bytes out, {one['received']:,} in)"
        if one["outcome"] == "passed" and one["sent"] + one["received"]
        else ""
    )
    times = f" {one['count']} times" if one["count"] > 1 else ""
    protocol = "" if one["protocol"] == "tcp" else f"{one['protocol']} "
    return f"{protocol}{one['destination']}{times}{sizes}"


def _escape_fixes(escaped_connections: Sequence[Mapping[str, Any]], *, is_replay: bool) -> Iterator[str]:
    yield "its client ignores the proxy variables: see `playhead doctor`, or use --isolation auto if the system allows it"
    local = [one for one in escaped_connections if one["destination"].startswith(("127.", "[::1]", "/"))]
    if is_replay and local:
        flags = " ".join(f"--allow-local {one['destination']}" for one in local[:MAX_SHOWN])
        yield f"if these services of this machine are meant to be reached: {flags}"


def _is_quic(one: Mapping[str, Any]) -> bool:
    return bool(one["protocol"] == "udp" and one["destination"].endswith(":443"))


def _local_fixes(refused: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    local = [one for one in refused if "--allow-local" in one["reason"]]
    if local:
        flags = " ".join(f"--allow-local {one['destination']}" for one in local[:MAX_SHOWN])
        yield f"to let it reach these services of this machine: {flags}"
