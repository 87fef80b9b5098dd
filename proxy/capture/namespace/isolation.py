"""Whether a command can run captive, and if not, why not and how to allow it."""

import errno
import os
import sys
from pathlib import Path
from typing import Literal

type Isolation = Literal["require", "auto", "off"]
"""The isolation that the user requests."""

type Kind = Literal["captive", "watched", "none"]
"""The isolation of a command: every connection was captured, or those that escaped were noticed, or neither."""

APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
LIMITS = "/proc/sys/user"
"""The directory with the kernel's limits for each kind of namespace (namespaces(7))."""

STEPS = {
    "namespaces": "entering namespaces of its own",
    "mount": "mounting files for it",
    "network": "routing every address to it",
    "rules": "redirecting its connections (nf_tables)",
    "listen": "listening for its connections",
    "watch": "watching its network",
    "control": "passing its connections to the proxy worker",
}


class NotCaptive(Exception):
    """A command cannot be captive here. The message, for the user, has no full stop."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(f"{reason}; {fix}" if fix else reason)


def step_failure(step: str, code: int, file: str | None = None) -> NotCaptive:
    """Describe the failure of one step."""
    what = STEPS.get(step, step)
    place = f" ({file})" if file else ""
    # unshare fails with ENOSPC when the limit on their number is reached.
    why = "the limit of their number is reached" if code == errno.ENOSPC else os.strerror(code)
    return NotCaptive(f"{what} failed: {why}{place}", way_to_allow(step, code))


def unsupported_reason() -> NotCaptive | None:
    """Explain why this system cannot run captive commands at all; None if it can."""
    if sys.platform != "linux":
        return NotCaptive(
            f"network namespaces are a feature of Linux, and this is {sys.platform}",
            "run the command in a Linux container or virtual machine",
        )
    if not os.path.exists("/proc/self/ns/user"):
        return NotCaptive("this kernel has no user namespaces", "use one with CONFIG_USER_NS and CONFIG_NET_NS")
    return None


def way_to_allow(step: str, code: int) -> str:
    """Return what the user can change to allow a step, as far as the system's settings show; empty if unknown."""
    if step == "rules":
        return "load the modules: sudo modprobe -a nf_tables nft_chain_nat nft_redir"
    if step not in ("namespaces", "mount", "network", "listen", "watch"):
        return ""
    if _read_file(CLONE) == "0":
        return "this kernel lets only root create user namespaces: sudo sysctl kernel.unprivileged_userns_clone=1"
    limits = [
        name for kind in ("user", "net", "mnt") if _read_file(f"{LIMITS}/{(name := f'max_{kind}_namespaces')}") == "0"
    ]
    if limits:
        return f"no such namespace may be created: sudo sysctl {' '.join(f'user.{name}=15000' for name in limits)}"
    if step == "namespaces" and code == errno.ENOSPC:
        return "a limit is reached: raise user.max_user_namespaces, user.max_net_namespaces and user.max_mnt_namespaces (sysctl)"
    if _read_file(APPARMOR) == "1" and os.geteuid() != 0:
        return (
            "AppArmor restricts unprivileged user namespaces (Ubuntu 23.10 and later):"
            " sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if step == "namespaces" and _is_filtered():
        return (
            "a seccomp filter forbids it, such as that of a container: start the container with"
            " --security-opt seccomp=unconfined --security-opt systempaths=unconfined, or with --cap-add SYS_ADMIN"
        )
    if step == "namespaces" and code == errno.EPERM:
        return "it cannot be allowed in a chroot or a sandbox: run the command outside"
    return ""


def _is_filtered() -> bool:
    return any(line.split() == ["Seccomp:", "2"] for line in _read_file("/proc/self/status").splitlines())


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""
