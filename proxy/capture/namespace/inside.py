"""The process that becomes a captive command: `python -I -S inside.py CHANNEL`.

It enters a network namespace in which every address is local, passes the listening sockets that it creates there to the
launcher (`proxy/capture/namespace/launch.py`), and executes the command. A helper process runs while the launcher keeps
the channel open: it creates sockets inside, for connections from the host to ports on which the command listens, and
updates the packet rules. It imports little, and only from the standard library, because every import delays the command.
"""

# `signal` would import `enum`.
import _signal  # type: ignore[import-not-found] # typeshed lacks it
import errno
import os
import socket
import sys

if __name__ == "__main__":
    # An interpreter that is isolated from the environment and site-packages does not find Playhead's package.
    sys.path.append(os.path.abspath(__file__).rsplit("/proxy/", 1)[0])

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

from proxy.capture.namespace import addresses, channel, mounts, nftables, usernamespace

FAILED = 125

RAW_SOCKETS = (("icmp", socket.AF_INET, 1), ("icmp6", socket.AF_INET6, 58))

SOCK_DIAG = 4


class StepFailure(Exception):
    """A step of the setup that the system did not allow."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name}: {error}")
        self.name = name
        self.error = error


def main(descriptor: int) -> None:
    """Set up the namespaces and execute the command, or report the step that failed."""
    launcher = channel.adopt_channel(descriptor)
    received = channel.receive_message(launcher)
    if received is None:
        sys.exit(FAILED)
    plan = received[0]
    try:
        sockets = _enter_captivity(plan)
    except StepFailure as step:
        failed = {"failed": step.name, "errno": step.error.errno or 0, "file": step.error.filename}
        channel.send_message(launcher, failed)
        sys.exit(FAILED)
    helper = _start_helper(launcher)
    kinds = [name for name, _ in sockets]
    ready = {"ready": True, "sockets": [*kinds, "helper"]}
    channel.send_message(launcher, ready, [*(one.fileno() for _, one in sockets), helper.fileno()])
    for _, one in sockets:
        one.close()
    helper.close()
    _execute(launcher)


def _enter_captivity(plan: "Mapping[str, Any]") -> "list[tuple[str, socket.socket]]":
    """Enter the namespaces and create the sockets there. Raises StepFailure."""
    _run_step("namespaces", usernamespace.enter_namespaces, os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWNS)
    _run_step("mount", mounts.keep_mounts_private)
    _run_step("mount", mounts.bind_all, plan["binds"])
    has_ipv6 = _run_step("network", addresses.make_all_addresses_local)
    families = [socket.AF_INET, socket.AF_INET6] if has_ipv6 else [socket.AF_INET]
    sockets = _tcp_listeners(plan, families)
    for family in families:
        sockets.append(("dns", _bind_socket(family, socket.SOCK_DGRAM, 53)))
    for host, port in plan["services"]:
        sockets.append(("service", _listener(socket.AF_INET6 if ":" in host else socket.AF_INET, port, host)))
    usernamespace.loosen_sysctls()
    return sockets + _watch_sockets(families)


def _tcp_listeners(plan: "Mapping[str, Any]", families: "Sequence[int]") -> "list[tuple[str, socket.socket]]":
    """Open the listeners for all connections or, if packet rules are neither possible nor needed, for a few ports."""
    own = [*plan["own"], addresses.SOURCE4, addresses.SOURCE6]
    try:
        if not plan["may_redirect"]:
            raise StepFailure("rules", OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT)))
        _run_step("rules", nftables.redirect_tcp, plan["port"], own)
        _run_step("rules", nftables.change_host_ports, plan["host_ports"], ())
    except StepFailure:
        if plan["needs_rules"]:
            raise
        return [("local", _listener(family, port)) for port in plan["ports"] for family in families]
    return [("redirected", _listener(family, plan["port"])) for family in families]


def _run_step(name: str, work: "Callable[..., Any]", *arguments: "Any") -> "Any":
    try:
        return work(*arguments)
    except OSError as error:
        raise StepFailure(name, error) from error


def _listener(family: int, port: int, host: str = "") -> socket.socket:
    listener = _bind_socket(family, socket.SOCK_STREAM, port, host)
    _run_step("listen", listener.listen, 4096)
    return listener


def _bind_socket(family: int, kind: int, port: int, host: str = "") -> socket.socket:
    """Bind a socket to one address, or to every address of a family."""
    endpoint = socket.socket(family, kind | socket.SOCK_CLOEXEC)
    if family == socket.AF_INET6:
        endpoint.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    _run_step("listen", endpoint.bind, (host, port))
    return endpoint


def _watch_sockets(families: "Sequence[int]") -> "list[tuple[str, socket.socket]]":
    """Open the sockets with which the launcher observes refused datagrams and listening ports inside."""
    found = [
        (name, _run_step("watch", socket.socket, family, socket.SOCK_RAW, protocol))
        for name, family, protocol in RAW_SOCKETS
        if family in families
    ]
    return [*found, ("listening", _run_step("watch", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG))]


def _start_helper(launcher: socket.socket) -> socket.socket:
    """Start the helper, which is not the command's child. Returns the launcher's end of the channel to it."""
    launcher_end, helper_end = socket.socketpair()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            launcher_end.close()
            launcher.close()
            _run_helper(helper_end)
        os._exit(0)
    os.waitpid(child, 0)
    helper_end.close()
    return launcher_end


def _run_helper(requests: socket.socket) -> None:
    """Serve the launcher until it closes the channel. Never returns."""
    os.setsid()
    keep = requests.detach()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    keep = os.dup2(keep, 3)
    os.closerange(4, 1 << 20)
    requests = socket.socket(fileno=keep)
    os.chdir("/")
    try:
        while received := channel.receive_message(requests):
            _serve_request(requests, received[0])
    except OSError:
        pass
    os._exit(0)


def _serve_request(requests: socket.socket, request: "Mapping[str, Any]") -> None:
    if "added" in request:
        nftables.change_host_ports(request["added"], request["removed"])
        channel.send_message(requests, {"done": True})
    else:
        with socket.socket(request["family"], request["type"]) as new_socket:
            channel.send_message(requests, {"done": True}, [new_socket.fileno()])


def _execute(launcher: socket.socket) -> None:
    """Execute the command that the launcher sends. Never returns."""
    received = channel.receive_message(launcher)
    if received is None or "command" not in received[0]:
        sys.exit(FAILED)
    work = received[0]
    try:
        if os.geteuid() == 0:
            # In another user namespace root keeps its rights on files and loses those on this network.
            # Other users lose their capabilities when they execute a program.
            _run_step("namespaces", usernamespace.enter_namespaces, os.CLONE_NEWUSER | os.CLONE_NEWNS)
        _report_connections(launcher, refuses=work["refuses"])
        for descriptor in work["withheld_descriptors"]:
            os.close(descriptor)
        _unblock_interrupts()
        os.execvpe(work["command"][0], work["command"], dict(work["environment"]))  # noqa: S606 - the user's own command
    except OSError as error:
        channel.send_message(launcher, {"failed": "execute", "errno": error.errno or 0, "file": None})
    except StepFailure as step:
        channel.send_message(launcher, {"failed": step.name, "errno": step.error.errno or 0, "file": None})
    sys.exit(FAILED)


def _report_connections(launcher: socket.socket, *, refuses: bool) -> None:
    """Have the kernel report each connection to the launcher, or say why it does not: unix sockets are in no network."""
    # The import is slow, and the launcher is waiting for the command's worker until here.
    from proxy.capture.watch import seccomp

    try:
        calls = ("connect", seccomp.IO_URING) if refuses else ("connect",)
        listener = seccomp.install_filter(calls, may_lose_privileges=False)
    except OSError as error:
        channel.send_message(launcher, {"unwatched": error.strerror or str(error)})
        return
    channel.send_message(launcher, {"watched": True}, [listener])
    os.close(listener)


def _unblock_interrupts() -> None:
    """Let Ctrl-C end the process as it will end the command. The launcher has blocked it: Python would print a traceback."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGINT])


if __name__ == "__main__":
    main(int(sys.argv[1]))
