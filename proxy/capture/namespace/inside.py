"""The process that becomes a captive command: `python -I -S inside.py CHANNEL`.

It leaves the host's network for a namespace in which every address is local, passes the listening sockets that it makes
there to the launcher (`proxy/capture/namespace/launch.py`), and executes the command. A helper stays behind for as long as the
launcher keeps the channel open: it makes sockets inside, for connections from the host to what the command listens on,
and keeps the packet rules. Standard library only, and little of that: every import delays the command.
"""

import errno
import os
import socket
import sys

if __name__ == "__main__":
    # Isolated from the user's environment and site-packages, an interpreter does not find our own package.
    sys.path.append(os.path.abspath(__file__).rsplit("/proxy/", 1)[0])

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

from proxy.capture.namespace import addresses, channel, mounts, nftables, usernamespace

FAILED = 125

RAW_SOCKETS = (("icmp", socket.AF_INET, 1), ("icmp6", socket.AF_INET6, 58))

SOCK_DIAG = 4


class Step(Exception):
    """A step that the system did not allow."""

    def __init__(self, name: str, error: OSError) -> None:
        super().__init__(f"{name}: {error}")
        self.name = name
        self.error = error


def main(descriptor: int) -> None:
    """Become the command, or report the step that failed."""
    launcher = channel.inherited(descriptor)
    received = channel.receive(launcher)
    if received is None:
        sys.exit(FAILED)
    plan = received[0]
    try:
        sockets = _captive(plan)
    except Step as step:
        failed = {"failed": step.name, "errno": step.error.errno or 0, "file": step.error.filename}
        channel.send(launcher, failed)
        sys.exit(FAILED)
    helper = _start_helper(launcher)
    kinds = [name for name, _ in sockets]
    ready = {"ready": True, "sockets": [*kinds, "helper"]}
    channel.send(launcher, ready, [*(one.fileno() for _, one in sockets), helper.fileno()])
    for _, one in sockets:
        one.close()
    helper.close()
    _execute(launcher)


def _captive(plan: "Mapping[str, Any]") -> "list[tuple[str, socket.socket]]":
    """Enter the namespaces and make the sockets there. Raises Step."""
    _step("namespaces", usernamespace.enter, os.CLONE_NEWUSER | os.CLONE_NEWNET | os.CLONE_NEWNS)
    _step("mount", mounts.keep_mounts_private)
    _step("mount", mounts.bind_all, plan["binds"])
    has_ipv6 = _step("network", addresses.make_all_addresses_local)
    families = [socket.AF_INET, socket.AF_INET6] if has_ipv6 else [socket.AF_INET]
    sockets = _redirected(plan, families)
    for family in families:
        sockets.append(("dns", _bound(family, socket.SOCK_DGRAM, 53)))
    for host, port in plan["services"]:
        sockets.append(("service", _listener(socket.AF_INET6 if ":" in host else socket.AF_INET, port, host)))
    usernamespace.loosen_sysctls()
    return sockets + _watching(families)


def _redirected(plan: "Mapping[str, Any]", families: "Sequence[int]") -> "list[tuple[str, socket.socket]]":
    """Where connections arrive: all of them, or, where rules cannot be had and need not be, those to a few ports."""
    own = [*plan["own"], addresses.SOURCE4, addresses.SOURCE6]
    try:
        if not plan["may_redirect"]:
            raise Step("rules", OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT)))
        _step("rules", nftables.redirect_tcp, plan["port"], own)
        _step("rules", nftables.change_host_ports, plan["host_ports"], ())
    except Step:
        if plan["needs_rules"]:
            raise
        return [("local", _listener(family, port)) for port in plan["ports"] for family in families]
    return [("redirected", _listener(family, plan["port"])) for family in families]


def _step(name: str, work: "Callable[..., Any]", *arguments: "Any") -> "Any":
    try:
        return work(*arguments)
    except OSError as error:
        raise Step(name, error) from error


def _listener(family: int, port: int, host: str = "") -> socket.socket:
    listener = _bound(family, socket.SOCK_STREAM, port, host)
    _step("listen", listener.listen, 4096)
    return listener


def _bound(family: int, kind: int, port: int, host: str = "") -> socket.socket:
    """A socket at one address, or at every address of a family."""
    bound = socket.socket(family, kind | socket.SOCK_CLOEXEC)
    if family == socket.AF_INET6:
        bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    _step("listen", bound.bind, (host, port))
    return bound


def _watching(families: "Sequence[int]") -> "list[tuple[str, socket.socket]]":
    """Sockets by which the launcher sees what is refused inside, and who listens there."""
    found = [
        (name, _step("watch", socket.socket, family, socket.SOCK_RAW, protocol))
        for name, family, protocol in RAW_SOCKETS
        if family in families
    ]
    return [*found, ("listening", _step("watch", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG))]


def _start_helper(launcher: socket.socket) -> socket.socket:
    """Leave a process behind that is not the command's child; the launcher's end of the channel to it."""
    ours, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            ours.close()
            launcher.close()
            _help(its)
        os._exit(0)
    os.waitpid(child, 0)
    its.close()
    return ours


def _help(requests: socket.socket) -> None:
    """Serve the launcher until it is gone. Never returns."""
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
        while received := channel.receive(requests):
            _serve(requests, received[0])
    except OSError:
        pass
    os._exit(0)


def _serve(requests: socket.socket, request: "Mapping[str, Any]") -> None:
    if "added" in request:
        nftables.change_host_ports(request["added"], request["removed"])
        channel.send(requests, {"done": True})
    else:
        with socket.socket(request["family"], request["type"]) as made:
            channel.send(requests, {"done": True}, [made.fileno()])


def _execute(launcher: socket.socket) -> None:
    """Execute the command that the launcher sends. Never returns."""
    received = channel.receive(launcher)
    if received is None or "command" not in received[0]:
        sys.exit(FAILED)
    work = received[0]
    try:
        if os.geteuid() == 0:
            # Root keeps its power over files and loses that over this network, which is another namespace's now.
            # Any other user loses its capabilities by executing.
            _step("namespaces", usernamespace.enter, os.CLONE_NEWUSER | os.CLONE_NEWNS)
        os.execvpe(work["command"][0], work["command"], dict(work["environment"]))  # noqa: S606 - the user's own command
    except OSError as error:
        channel.send(launcher, {"failed": "execute", "errno": error.errno or 0, "file": None})
    except Step as step:
        channel.send(launcher, {"failed": step.name, "errno": step.error.errno or 0, "file": None})
    sys.exit(FAILED)


if __name__ == "__main__":
    main(int(sys.argv[1]))
