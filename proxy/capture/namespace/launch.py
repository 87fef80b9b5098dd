"""Run a command captive: in namespaces of its own, in which every address leads to the proxy worker.

The process that becomes the command (`proxy/capture/namespace/inside.py`) is a child of the launcher, so its terminal,
signals and exit code are the usual ones. It passes the listening sockets that it created inside to the launcher, which
passes them to the worker's control socket. The launcher then watches which ports the command listens on, and which
datagrams are refused.
"""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from proxy.capture.control_path import LOAD_TIMEOUT, effects_path
from proxy.capture.namespace import channel, listening
from proxy.capture.namespace.browser_policies import policy_binds
from proxy.capture.namespace.isolation import NotCaptive, step_failure, unsupported_reason
from proxy.capture.namespace.mirror import Mirror
from proxy.capture.namespace.refusals import Refusals
from proxy.capture.namespace.system_files import system_binds
from proxy.capture.namespace.trust_files import AuthorityFiles, trust_binds
from proxy.capture.watch.local_sockets import LocalSockets
from proxy.capture.watch.survivors import start_answering_process
from proxy.errors import Failure
from proxy.processes.user_command import forwarded_signals

INSIDE: Final = Path(__file__).with_name("inside.py")

SETUP_TIMEOUT: Final = 30.0
"""Seconds that setting up the namespaces may take."""

CONTROL_TIMEOUT: Final = 30.0

WORKER_CHECK_INTERVAL: Final = 0.1
"""Seconds between two checks whether the worker runs."""

WORKER_TIMEOUT: Final = 60.0
"""Seconds that a worker may take to restart."""

MAX_REPORT_BYTES: Final = 4 << 20

REDIRECT_PORTS: Final = range(61000, 65000)
"""Ports of which one takes the redirected connections. The kernel gives them to no outgoing connection."""

PORTS_WITHOUT_REDIRECT: Final = (80, 443)
"""The ports that are captured if connections cannot be redirected. Connections to others are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePlan:
    """How to handle a captive command's connections, and which worker does it."""

    control: str
    """The proxy worker's control socket."""

    run: str
    token: str | None
    authority: AuthorityFiles
    passes_other_tcp: bool
    """Whether other protocols than HTTP and TLS reach their destinations, and connections this machine's loopback."""

    allow_local: Sequence[tuple[str, int]] = ()
    unresolved_names: Sequence[str] = ()
    """Host names that did not resolve when the run that is replayed was recorded."""

    services: Sequence[tuple[str, int]] = ()
    """Addresses on this machine's loopback that the command may reach, beside the worker: Playhead's REST API."""

    binds: Sequence[tuple[str, str]] = ()
    """More bind mounts, as (copy, target)."""

    is_replay: bool = False
    may_redirect: bool = True
    """False behaves like a kernel without nf_tables."""

    withheld_descriptors: Sequence[int] = ()
    """Descriptors that the command does not inherit."""

    outlives_worker: bool = False
    """Whether the worker is restarted when it dies (`playhead up`), and gets the sockets again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """What of a captive command was not recorded."""

    connections: Sequence[Mapping[str, Any]]
    """The connections that passed or were refused, by destination."""

    unresolved_names: Sequence[str]
    """The host names that did not resolve."""

    unwatched_reason: str = ""
    """Why connections to unix sockets were not noticed; empty if they were."""


class InsideProcess:
    """The process that becomes a captive command. Until it gets a plan it waits, and changes nothing."""

    def __init__(self, process: asyncio.subprocess.Process, own_end: socket.socket) -> None:
        self.process = process
        self.channel = own_end

    @classmethod
    async def start(cls, stdout: int | None = None) -> Self:
        """Start it. Raises OSError."""
        own_end, inside_end = socket.socketpair()
        try:
            with inside_end, _blocked_interrupts():
                os.set_inheritable(inside_end.fileno(), True)
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", str(INSIDE), str(inside_end.fileno()), stdout=stdout, close_fds=False
                )
        except BaseException:
            own_end.close()
            raise
        return cls(process, own_end)

    async def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self.channel.close()


class Captive:
    """One command and its network. An async context manager; raises NotCaptive if the system does not allow it."""

    def __init__(
        self,
        command: Sequence[str],
        capture: CapturePlan,
        *,
        stdout: int | None = None,
        inside: InsideProcess | None = None,
    ) -> None:
        """`inside`: the process that becomes the command, if it was started before."""
        self._command = command
        self._capture = capture
        self._stdout = stdout
        self._inside = inside
        self._stack = AsyncExitStack()
        self._process: asyncio.subprocess.Process
        self._channel: socket.socket
        self._control: socket.socket | None = None
        self._is_asking = False
        self._refusals = Refusals()
        self._local_sockets: LocalSockets | None = None
        self._unwatched_reason = ""
        self._mirror: Mirror

    async def __aenter__(self) -> Self:
        if self._inside is not None:
            self._stack.push_async_callback(self._inside.end)
        try:
            if reason := unsupported_reason():
                raise reason
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def run(self, environment: Mapping[str, str]) -> int:
        """Execute the command, and return its exit code; 128 + n if signal n ended it."""
        self._stack.push_async_callback(self._stop_watching)
        with forwarded_signals(self._process):
            await asyncio.to_thread(self._execute, environment)
            code = await self._process.wait()
        return 128 - code if code < 0 else code

    async def report(self) -> CaptureReport:
        """Return what was not recorded so far."""
        answer: Mapping[str, Any] = {}
        if self._control is not None:
            with suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(CONTROL_TIMEOUT):
                    answer = await self._ask_worker(self._control, {"report": True}, ())
        local = self._local_sockets
        return CaptureReport(
            connections=[
                *answer.get("connections", ()),
                *self.refused_datagrams(),
                *(local.connections() if local else ()),
            ],
            unresolved_names=answer.get("unresolved_names", ()),
            unwatched_reason=self._unwatched_reason or (local.unread_reason if local else ""),
        )

    def refused_datagrams(self) -> list[dict[str, Any]]:
        """Return the refused datagrams so far, by destination."""
        return self._refusals.connections()

    async def _start(self) -> None:
        try:
            plan = await asyncio.to_thread(self._build_plan)
        except OSError as error:
            raise NotCaptive(f"the files that it would see cannot be copied ({error})") from error
        if (inside := self._inside) is None:
            inside = await InsideProcess.start(self._stdout)
            self._stack.push_async_callback(inside.end)
        self._process, self._channel = inside.process, inside.channel
        sockets = await asyncio.to_thread(self._make_namespaces, plan)
        is_redirected = any(name == "redirected" for name, _ in sockets)
        listener_ports = [plan["port"]] if is_redirected else plan["ports"]
        own = [*listener_ports, 53, *(port for _, port in self._capture.services)]
        passed = [pair for pair in sockets if pair[0] in ("redirected", "local", "dns")]
        recorded_ports = await self._pass_on(passed)
        if self._capture.outlives_worker:
            following = asyncio.get_running_loop().create_task(self._follow_worker(passed))
            self._stack.push_async_callback(_cancel_task, following)
        else:
            _close_all(passed)
        by_name = dict(sockets)
        for name, one in sockets:
            if name in ("icmp", "icmp6"):
                self._refusals.watch(one)
        self._stack.callback(self._refusals.close)
        host_ports = plan["host_ports"] if is_redirected else None
        self._mirror = Mirror(by_name["helper"], by_name["listening"], own, host_ports, recorded_ports)
        await self._stack.enter_async_context(self._mirror)
        listeners = [one for name, one in sockets if name == "service"]
        for listener, (host, port) in zip(listeners, self._capture.services, strict=True):
            await self._mirror.serve(listener, host, port)

    def _build_plan(self) -> dict[str, Any]:
        capture = self._capture
        services = {port for _, port in capture.services}
        binds = system_binds(capture.authority.copies, hides_engines=capture.is_replay)
        binds += trust_binds(capture.authority, self._command, os.environ)
        binds += policy_binds(capture.authority)
        return {
            "binds": [*binds, *capture.binds],
            "own": listening.own_addresses(),
            "host_ports": sorted(one for one in listening.host_ports() if one[2] not in services),
            "services": list(capture.services),
            "port": random.choice(REDIRECT_PORTS),  # noqa: S311 - no secret
            "ports": PORTS_WITHOUT_REDIRECT,
            "needs_rules": capture.passes_other_tcp,
            "may_redirect": capture.may_redirect,
        }

    def _make_namespaces(self, plan: Mapping[str, Any]) -> list[tuple[str, socket.socket]]:
        """Set up the namespaces, and return the sockets that were created there, by name. Raises NotCaptive."""
        self._channel.settimeout(SETUP_TIMEOUT)
        try:
            channel.send_message(self._channel, plan)
            message, descriptors = self._receive_from_inside()
        except OSError as error:
            raise NotCaptive(f"the process that creates the namespaces does not answer ({error})") from error
        if "failed" in message:
            raise step_failure(message["failed"], message["errno"], message["file"])
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for one in sockets:
            self._stack.callback(one.close)
        return list(zip(message["sockets"], sockets, strict=True))

    def _receive_from_inside(self) -> tuple[dict[str, Any], list[int]]:
        """Receive a message from the process inside. Raises OSError."""
        received = channel.receive_message(self._channel)
        if received is None:
            raise ConnectionError("it has ended")
        return received

    async def _pass_on(self, sockets: Sequence[tuple[str, socket.socket]]) -> Sequence[int]:
        """Pass the listening sockets to the worker, and return the ports of this machine that its recording has.

        Raises NotCaptive.
        """
        capture = self._capture
        message = {
            "run": capture.run,
            "token": capture.token,
            "other_tcp": "pass" if capture.passes_other_tcp else "refuse",
            "allow_local": [list(one) for one in capture.allow_local],
            "unresolved_names": list(capture.unresolved_names),
            "sockets": [
                {"kind": "dns"} if name == "dns" else {"kind": "tcp", "destination": name} for name, _ in sockets
            ],
        }
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.callback(self._control.close)
        self._control.setblocking(False)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT + CONTROL_TIMEOUT):
                self._control.connect(capture.control)
                answer = await self._ask_worker(self._control, message, [one.fileno() for _, one in sockets])
        except (OSError, TimeoutError, ValueError) as error:
            raise NotCaptive(f"the proxy worker does not answer at {capture.control} ({error})") from error
        if "failed" in answer:
            raise NotCaptive(f"the proxy worker refused its connections: {answer['failed']}")
        recorded_ports: Sequence[int] = answer.get("recorded_ports", ())
        return recorded_ports

    async def _follow_worker(self, sockets: Sequence[tuple[str, socket.socket]]) -> None:
        """Pass the sockets to each new worker. If none starts in time, close them, so that connections are refused."""
        try:
            while True:
                await self._wait_for_worker_end()
                async with asyncio.timeout(WORKER_TIMEOUT):
                    await self._pass_on_again(sockets)
        except TimeoutError:
            _close_all(sockets)

    async def _pass_on_again(self, sockets: Sequence[tuple[str, socket.socket]]) -> None:
        while True:
            await asyncio.sleep(WORKER_CHECK_INTERVAL)
            try:
                await self._pass_on(sockets)
            except NotCaptive:
                continue
            return

    async def _wait_for_worker_end(self) -> None:
        """Wait until the control connection ends."""
        while self._control is not None:
            await asyncio.sleep(WORKER_CHECK_INTERVAL)
            try:
                if not self._is_asking and self._control.recv(1, socket.MSG_PEEK) == b"":
                    return
            except BlockingIOError:
                continue
            except OSError:
                return

    async def _ask_worker(
        self, control: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int]
    ) -> dict[str, Any]:
        self._is_asking = True
        try:
            socket.send_fds(control, [json.dumps(message).encode()], list(descriptors))
            data = await asyncio.get_running_loop().sock_recv(control, MAX_REPORT_BYTES)
        finally:
            self._is_asking = False
        answer: dict[str, Any] = json.loads(data) if data else {"failed": "it closed the connection"}
        return answer

    def _watch_local_sockets(self, message: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        if not descriptors:
            self._unwatched_reason = (
                f"this system does not allow watching system calls (seccomp): {message['unwatched']}"
            )
            return
        allowed = [path for path, _ in self._capture.allow_local if path.startswith("/")]
        self._local_sockets = LocalSockets(
            descriptors[0],
            allowed=[*allowed, str(effects_path(self._capture.control))],
            own_directory=Path(self._capture.control).parent,
            refuses=not self._capture.passes_other_tcp,
        )
        self._local_sockets.begin(self._process.pid)

    async def _stop_watching(self) -> None:
        if self._local_sockets is None:
            return
        listener = await asyncio.to_thread(self._local_sockets.stop)
        if listener is not None:
            start_answering_process(listener, refuses=not self._capture.passes_other_tcp)

    def _execute(self, environment: Mapping[str, str]) -> None:
        """Make the process inside execute the command. Raises Failure."""
        command = {
            "command": list(self._command),
            "environment": dict(environment),
            "withheld_descriptors": list(self._capture.withheld_descriptors),
            "refuses": not self._capture.passes_other_tcp,
        }
        channel.send_message(self._channel, command)
        try:
            message, descriptors = self._receive_from_inside()
            if "failed" not in message:
                self._watch_local_sockets(message, descriptors)
                message, _ = self._receive_from_inside()
        except OSError:
            return  # the kernel closed the channel when the command was executed
        reason = os.strerror(message["errno"])
        if message["failed"] == "execute":
            raise Failure(f"cannot run {self._command[0]}: {reason}")
        raise Failure(f"cannot run {self._command[0]} captive: {step_failure(message['failed'], message['errno'])}")


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Start processes that Ctrl-C does not end before they become the command: until then it is ours to end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _close_all(sockets: Sequence[tuple[str, socket.socket]]) -> None:
    for _, one in sockets:
        one.close()


async def _cancel_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
