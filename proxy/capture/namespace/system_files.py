"""Replacements of the host's files for a captive command: name resolution, container engines and ssh's configuration.

Names are resolved by DNS, which the proxy worker answers (`proxy/capture/dns/resolver.py`), whatever the host uses.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from proxy.capture.watch.local_services import CONTAINER_ENGINES

NSSWITCH: Final = "/etc/nsswitch.conf"
NAME_SERVICES: Final = ("/run/nscd/socket", "/var/run/nscd/socket")
"""Sockets of nscd, which glibc asks before any name server."""

SSH: Final = "/etc/ssh"

_OTHER_RESOLVERS: Final = re.compile(r"\s(resolve|mdns\w*|libvirt\w*|nis\w*|wins)\b(\s*\[[^\]]*\])?")


def system_binds(scratch: Path, *, hides_engines: bool) -> list[tuple[str, str]]:
    """Return the bind mounts as (source, target). Copies are written to `scratch`."""
    binds = [*_name_binds(scratch), *_ssh_binds(scratch)]
    if hides_engines:
        sockets = [
            *CONTAINER_ENGINES,
            f"/run/user/{os.getuid()}/docker.sock",
            f"/run/user/{os.getuid()}/podman/podman.sock",
        ]
        binds += [(os.devnull, path) for path in _existing_sockets(sockets)]
    return binds


def dns_only_nsswitch(nsswitch: str) -> str:
    """Return nsswitch.conf with host names resolved by files and DNS, and by no other service."""
    lines = []
    for line in nsswitch.splitlines():
        if re.match(r"\s*hosts\s*:", line):
            line = _OTHER_RESOLVERS.sub("", line)
            line = line if re.search(r"\bdns\b", line) else f"{line} dns"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _name_binds(scratch: Path) -> Iterator[tuple[str, str]]:
    try:
        text = Path(NSSWITCH).read_text("utf-8", "surrogateescape")
    except OSError:
        text = ""
    if text and (ours := dns_only_nsswitch(text)) != text:
        copy = scratch / "nsswitch.conf"
        copy.write_text(ours, "utf-8", "surrogateescape")
        yield str(copy), os.path.realpath(NSSWITCH)
    yield from ((os.devnull, path) for path in _existing_sockets(NAME_SERVICES))
    try:
        text = Path("/etc/resolv.conf").read_text("utf-8", "surrogateescape")
    except OSError:
        return
    if (ours := reachable_resolv_conf(text)) != text:
        copy = scratch / "resolv.conf"
        copy.write_text(ours, "utf-8", "surrogateescape")
        yield str(copy), os.path.realpath("/etc/resolv.conf")


def reachable_resolv_conf(resolv: str) -> str:
    """Return resolv.conf without name servers on a named interface, and without the options for TCP and trust-ad.

    Other name servers can stay, because every address leads to the worker.
    """
    lines = []
    for line in resolv.splitlines():
        if re.match(r"\s*nameserver\s+\S+%", line):
            line = "nameserver 127.0.0.53"
        if re.match(r"\s*options\b", line):
            line = re.sub(r"\s(use-vc|trust-ad)\b", "", line)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _ssh_binds(scratch: Path) -> Iterator[tuple[str, str]]:
    """Copy ssh's configuration for users other than root, who see root's files as nobody's, which ssh refuses."""
    if os.geteuid() == 0 or not os.path.isdir(f"{SSH}/ssh_config.d"):
        return
    copy = scratch / "ssh"
    try:
        shutil.copytree(SSH, copy, ignore=_unreadable_names)
    except (OSError, shutil.Error):
        return
    yield str(copy), SSH


def _unreadable_names(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if not os.access(os.path.join(directory, name), os.R_OK)]


def _existing_sockets(paths: "list[str] | tuple[str, ...]") -> Iterator[str]:
    real_paths = set()
    for path in paths:
        real = os.path.realpath(path)
        try:
            if real not in real_paths and stat.S_ISSOCK(os.stat(real).st_mode):
                real_paths.add(real)
                yield real
        except OSError:
            continue
