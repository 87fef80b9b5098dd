"""Replacements of the host's files for a captive command: name resolution, container engines and ssh's configuration.

Names are resolved by DNS, which the proxy worker answers (`proxy/capture/dns/resolver.py`), whatever the host uses. The
copies are named by what they hold and stay, beside those of `trust_files`: a directory for each command would be left behind
when it is killed.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from proxy.capture.namespace.trust_files import make_copy, write_copy
from proxy.capture.watch.local_services import CONTAINER_ENGINES

NSSWITCH: Final = "/etc/nsswitch.conf"
NAME_SERVICES: Final = ("/run/nscd/socket", "/var/run/nscd/socket")
"""Sockets of nscd, which glibc asks before any name server."""

SSH: Final = "/etc/ssh"

_OTHER_RESOLVERS: Final = re.compile(r"\s(resolve|mdns\w*|libvirt\w*|nis\w*|wins)\b(\s*\[[^\]]*\])?")


def system_binds(copies: Path, *, hides_engines: bool) -> list[tuple[str, str]]:
    """Return the bind mounts as (source, target). `copies`: where the changed files are kept. Raises OSError."""
    copies.mkdir(mode=0o755, exist_ok=True)
    binds = [*_name_binds(copies), *_ssh_binds(copies)]
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


def _name_binds(copies: Path) -> Iterator[tuple[str, str]]:
    try:
        text = Path(NSSWITCH).read_text("utf-8", "surrogateescape")
    except OSError:
        text = ""
    if text and (ours := dns_only_nsswitch(text)) != text:
        yield str(_text_copy(copies, "nsswitch.conf", ours)), os.path.realpath(NSSWITCH)
    yield from ((os.devnull, path) for path in _existing_sockets(NAME_SERVICES))
    try:
        text = Path("/etc/resolv.conf").read_text("utf-8", "surrogateescape")
    except OSError:
        return
    if (ours := reachable_resolv_conf(text)) != text:
        yield str(_text_copy(copies, "resolv.conf", ours)), os.path.realpath("/etc/resolv.conf")


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


def _text_copy(copies: Path, name: str, text: str) -> Path:
    data = text.encode("utf-8", "surrogateescape")
    copy = copies / f"{name}-{sha256(data).hexdigest()[:20]}"
    if not copy.exists():
        write_copy(copy, data)
    return copy


def _ssh_binds(copies: Path) -> Iterator[tuple[str, str]]:
    """Copy ssh's configuration for users other than root, who see root's files as nobody's, which ssh refuses."""
    if os.geteuid() == 0 or not os.path.isdir(f"{SSH}/ssh_config.d"):
        return
    copy = copies / f"ssh-{sha256(repr(list(_file_states(SSH))).encode()).hexdigest()[:20]}"
    if make_copy(copy, _copy_ssh) is not None:
        yield str(copy), SSH


def _copy_ssh(copy: Path) -> None:
    # What symbolic links lead to is root's as well.
    shutil.copytree(SSH, copy, ignore=_unreadable_names)


def _file_states(directory: str) -> Iterator[tuple[str, int, int, int]]:
    """Yield path, time of change, size and mode of each file that a copy has."""
    for place, directories, files in os.walk(directory, followlinks=True):
        directories.sort()
        for name in sorted(files):
            path = os.path.join(place, name)
            if os.access(path, os.R_OK):
                found = os.stat(path)
                yield path, found.st_mtime_ns, found.st_size, found.st_mode


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
