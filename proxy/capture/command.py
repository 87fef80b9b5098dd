"""Run somebody's command before a proxy worker: captive where the system allows it, else by proxy variables."""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from proxy.capture.namespace.isolation import Isolation, Kind, NotCaptive
from proxy.capture.watch.watcher import How, run_watched
from proxy.errors import Failure
from proxy.processes.store_client import Api, segment
from proxy.trust.client_environment import addressed, captive_variables, variables, without_secrets, without_system_file

WITHOUT_RULES: Final = "PLAYHEAD_TEST_WITHOUT_NF_TABLES"
"""Where it is set, commands run as on a kernel without nf_tables. For tests."""

SHOWN: Final = 8
"""Destinations that a summary names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationWish:
    """What the user said about isolation."""

    isolation: Isolation = "auto"
    allow_local: tuple[tuple[str, int], ...] = ()
    """Services of this machine that a replay may reach."""

    watch: How = "seccomp"
    """How a command that is not captive is watched."""


NO_WISH: Final = IsolationWish()
"""What holds where nothing was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A command, and the proxy worker that its traffic goes to."""

    command: Sequence[str]
    place: Mapping[str, Any]
    """What the worker says of itself: proxy, ca, ca_bundle, control."""

    run: str
    token: str | None
    api: str | None = None
    api_token_file: Path | None = None
    """Where the API's token lies. Only the path is told to the command."""

    passes_other_traffic: bool
    """A recording lets pass what it cannot record, and keeps the user's NO_PROXY; a replay lets nothing out."""

    wish: IsolationWish = NO_WISH
    stdout: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What came of a command."""

    code: int
    isolation: Kind
    not_captive: str | None = None
    """Why it was not captive, where that was wished for."""

    connections: Sequence[Mapping[str, Any]] = field(default=())
    """What went elsewhere than into the recording, or was refused, by destination."""

    not_watched: str | None = None
    """Why short connections may have escaped unseen."""

    @property
    def escaped(self) -> list[Mapping[str, Any]]:
        """What went past the proxy worker."""
        return [one for one in self.connections if one["outcome"] == "escaped"]

    @property
    def refused(self) -> list[Mapping[str, Any]]:
        return [one for one in self.connections if one["outcome"] == "refused"]

    @property
    def passed(self) -> list[Mapping[str, Any]]:
        return [one for one in self.connections if one["outcome"] == "passed"]


async def run_command(work: Work) -> CommandResult:
    """Run it to its end. Raises Failure where it cannot be started, or not as captive as is required."""
    if work.wish.isolation == "off":
        return await _run_with_variables(work)
    try:
        return await _run_captive(work)
    except NotCaptive as reason:
        if work.wish.isolation == "require":
            raise Failure(
                f"{work.command[0]} cannot be isolated here: {reason}; --isolation auto runs it with proxy variables alone"
            ) from reason
        return await _run_with_variables(work, str(reason))


async def _run_captive(work: Work) -> CommandResult:
    # It is of no use where --isolation is off, and imports what only Linux has.
    from proxy.capture.namespace.launch import Captive, CapturePlan
    from proxy.capture.namespace.trust_files import AuthorityFiles

    place = work.place
    if not place.get("control"):
        raise NotCaptive("the proxy worker has no control socket", "restart `playhead up` with this version")
    capture = CapturePlan(
        control=place["control"],
        run=work.run,
        token=work.token,
        authority=AuthorityFiles(certificate=Path(place["ca"]), java=java_roots(place["ca_bundle"])),
        passes_other_tcp=work.passes_other_traffic,
        allow_local=work.wish.allow_local,
        services=[one for one in _addresses(work.api or "") if one[0] in ("127.0.0.1", "::1")],
        is_replay=not work.passes_other_traffic,
        may_redirect=WITHOUT_RULES not in os.environ,
        outlives_worker="mode" in place,  # the note of a running `up`, which starts its workers again
    )
    around = captive_variables(
        proxy=addressed(str(place["proxy"]), work.run, work.token),
        ca=place["ca"],
        ca_bundle=place.get("roots", place["ca_bundle"]),
        base=without_system_file(os.environ),
        run=work.run,
        api=work.api,
        api_token_file=work.api_token_file,
    )
    async with Captive(work.command, capture, stdout=work.stdout) as captive:
        code = await captive.run(around)
        return CommandResult(code=code, isolation="captive", connections=await captive.connections())


async def _run_with_variables(work: Work, not_captive: str | None = None) -> CommandResult:
    around = environment(work)
    own = [*_own_addresses(work), *work.wish.allow_local]
    watched = await run_watched(work.command, around, own, how=work.wish.watch, stdout=work.stdout)
    return CommandResult(
        code=watched.code,
        isolation="none" if watched.how == "off" else "watched",
        not_captive=not_captive,
        not_watched=watched.reason or None,
        connections=[
            {
                "destination": one.destination,
                "protocol": one.protocol,
                "outcome": "escaped",
                "reason": one.sentence,
                "count": one.count,
            }
            for one in watched.escapes
        ],
    )


def _own_addresses(work: Work) -> Iterator[tuple[str, int]]:
    return _addresses(*filter(None, (str(work.place["proxy"]), work.api)))


def _addresses(*urls: str) -> Iterator[tuple[str, int]]:
    for url in urls:
        parts = urlsplit(url)
        if parts.hostname and parts.port:
            yield ("127.0.0.1" if parts.hostname == "localhost" else parts.hostname), parts.port


def environment(work: Work) -> dict[str, str]:
    """This process's environment with a command's whole traffic turned towards a worker, under a run."""
    place, base = work.place, without_system_file(os.environ)
    turned = variables(
        proxy=addressed(str(place["proxy"]), work.run, work.token),
        ca=place["ca"],
        ca_bundle=place.get("roots", place["ca_bundle"]),
        run=work.run,
        api=work.api,
        api_token_file=work.api_token_file,
        base=base,
        truststore=java_roots(place["ca_bundle"]),
        bypass=work.passes_other_traffic,
    )
    return {**without_secrets(base), **turned}


def java_roots(bundle: str | Path) -> Path | None:
    """The CA bundle in Java's form, made where there is a Java to read it."""
    if shutil.which("java") is None:
        return None
    store = Path(bundle).with_name("truststore.p12")
    if not store.exists() or store.stat().st_mtime < Path(bundle).stat().st_mtime:
        # Certificates take long to learn to read, and this is done once.
        from proxy.trust.truststore import truststore

        part = store.with_suffix(f".{os.getpid()}")
        part.write_bytes(truststore(Path(bundle).read_bytes()))
        part.replace(store)
    return store


def isolation_lines(ran: CommandResult, *, is_replay: bool, reported: Collection[str] = ()) -> Iterator[str]:
    """What a summary says of isolation: why there was none, what passed, what was refused and how to allow it.

    `reported`: the destinations whose refusal the report of a replay has named already.
    """
    if ran.not_captive:
        yield f"not isolated: {ran.not_captive}"
    if ran.not_watched:
        yield f"short connections past the proxy may not have been noticed: {ran.not_watched}"
    if ran.escaped:
        yield f"WENT PAST THE PROXY, and is not in the recording: {_named(ran.escaped)}"
        yield from _escape_fixes(ran.escaped, is_replay=is_replay)
    if ran.passed and not is_replay:
        yield f"passed unrecorded: {_named(ran.passed)}"
    refused = [one for one in ran.refused if not _is_quic(one)]
    if unnamed := [one for one in refused if one["destination"] not in reported]:
        yield f"refused: {_named(unnamed)}"
    if is_replay:
        yield from _local_fixes(refused)


def store_escapes(api: Api, run: str, ran: CommandResult) -> None:
    """Make each destination that was reached past the proxy worker a gap of the run."""
    gaps = [{"reason": one["reason"], "count": one["count"]} for one in ran.escaped]
    if gaps:
        api.post(f"/runs/{segment(run)}/gaps", json={"gaps": gaps})


def _named(connections: Sequence[Mapping[str, Any]]) -> str:
    named = ", ".join(_place(one) for one in connections[:SHOWN])
    return named + (f" and {len(connections) - SHOWN} more" if len(connections) > SHOWN else "")


def _place(one: Mapping[str, Any]) -> str:
    sizes = f" ({one['sent']:,} bytes out, {one['received']:,} in)" if one["outcome"] == "passed" else ""
    times = f" {one['count']} times" if one["count"] > 1 else ""
    protocol = "" if one["protocol"] == "tcp" else f"{one['protocol']} "
    return f"{protocol}{one['destination']}{times}{sizes}"


def _escape_fixes(escaped: Sequence[Mapping[str, Any]], *, is_replay: bool) -> Iterator[str]:
    yield "its client ignores the proxy variables: see `playhead doctor`, or run it with --isolation auto where the system allows it"
    local = [one for one in escaped if one["destination"].startswith(("127.", "[::1]"))]
    if is_replay and local:
        flags = " ".join(f"--allow-local {one['destination']}" for one in local[:SHOWN])
        yield f"if these services of this machine are meant to be reached: {flags}"


def _is_quic(one: Mapping[str, Any]) -> bool:
    return bool(one["protocol"] == "udp" and one["destination"].endswith(":443"))


def _local_fixes(refused: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    local = [one for one in refused if "--allow-local" in one["reason"]]
    if local:
        flags = " ".join(f"--allow-local {one['destination']}" for one in local[:SHOWN])
        yield f"to let it reach these services of this machine: {flags}"
