"""The packet rules that redirect other users' connections to `playhead up --transparent`: as text, and in force.

The user that runs Playhead is always left out: its own connections to upstreams would come back to it.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from proxy.errors import Failure

type Format = Literal["nft", "iptables"]

TRANSPARENT_PORT: Final = 8082
"""Where `up --transparent` listens unless a port is given."""

PORTS: Final = (80, 443)
TABLE: Final = "playhead"
CHAIN: Final = "PLAYHEAD"
FORWARDED: Final = "PLAYHEAD_FORWARDED"

MOST_PORTS: Final = 15
"""Ports in one rule of iptables (its multiport match takes no more)."""

WITHIN: Final = 30.0
"""Seconds that nft or iptables may take: another program may hold the lock of the tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which connections are redirected."""

    port: int = TRANSPARENT_PORT
    """Where `up --transparent` listens."""

    ports: tuple[int, ...] = PORTS
    """The destination ports that are redirected."""

    left_out: tuple[int, ...]
    """User ids whose connections go where they went: that of Playhead among them."""

    users: tuple[int, ...] = ()
    """Only these user ids are redirected; empty: all but those left out."""

    interfaces: tuple[str, ...] = ()
    """Also redirect what arrives on these interfaces: from containers, or from other machines."""


def nft_text(rules: Rules) -> str:
    """A file for `nft -f`. It puts a whole table in place of what was there, so it may be applied again."""
    redirect = f"tcp dport {{ {_listed(rules.ports)} }} redirect to :{rules.port}"
    chains = [
        _nft_chain(
            "output",
            f'oifname "lo" return\nmeta skuid {{ {_listed(rules.left_out)} }} return',
            f"meta skuid {{ {_listed(rules.users)} }} {redirect}" if rules.users else redirect,
        )
    ]
    if rules.interfaces:
        names = ", ".join(f'"{name}"' for name in rules.interfaces)
        chains.append(_nft_chain("prerouting", f"fib daddr type local return\niifname {{ {names} }} {redirect}"))
    body = "\n".join(chains)
    return f"table inet {TABLE}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{body}}}\n"


def _nft_chain(hook: str, *lines: str) -> str:
    inside = "\n".join(lines).replace("\n", "\n\t\t")
    return f"\tchain {hook} {{\n\t\ttype nat hook {hook} priority -100; policy accept;\n\t\t{inside}\n\t}}\n"


def iptables_text(rules: Rules) -> str:
    """A file for `iptables-restore --noflush` and `ip6tables-restore --noflush`."""
    dports = [rules.ports[start : start + MOST_PORTS] for start in range(0, len(rules.ports), MOST_PORTS)]
    redirects = [
        f"-p tcp -m multiport --dports {_listed(part, ',')} -j REDIRECT --to-ports {rules.port}" for part in dports
    ]
    owners = [f"-m owner --uid-owner {user} " for user in rules.users] or [""]
    lines = [
        "*nat",
        f":{CHAIN} - [0:0]",
        *([f":{FORWARDED} - [0:0]"] if rules.interfaces else []),
        f"-A {CHAIN} -o lo -j RETURN",
        *(f"-A {CHAIN} -m owner --uid-owner {user} -j RETURN" for user in rules.left_out),
        *(f"-A {CHAIN} {owner}{redirect}" for owner in owners for redirect in redirects),
        f"-A OUTPUT -p tcp -j {CHAIN}",
    ]
    if rules.interfaces:
        lines.append(f"-A {FORWARDED} -m addrtype --dst-type LOCAL -j RETURN")
        lines += [f"-A {FORWARDED} {redirect}" for redirect in redirects]
        lines += [f"-A PREROUTING -i {name} -p tcp -j {FORWARDED}" for name in rules.interfaces]
    return "\n".join([*lines, "COMMIT", ""])


def _listed(values: Sequence[int], separator: str = ", ") -> str:
    return separator.join(str(value) for value in values)


# In force


def available_format() -> Format:
    """What this machine has: nft, else iptables. Raises Failure where it has neither."""
    if shutil.which("nft"):
        return "nft"
    if shutil.which("iptables"):
        return "iptables"
    raise Failure(
        "neither nft nor iptables is on the PATH: install nftables (apt-get install nftables), or print the rules with"
        " --format and apply them where there is one"
    )


def apply(rules: Rules, text_format: Format) -> None:
    """Put the rules in force, in place of any that are. Raises Failure."""
    _need_root("apply")
    if text_format == "nft":
        _run(["nft", "-f", "-"], nft_text(rules))
        return
    _remove_iptables()
    for program in _iptables_programs():
        _run([f"{program}-restore", "--noflush", "--wait"], iptables_text(rules))


def remove() -> bool:
    """Take the rules back, in whichever form they are; whether there were any. Raises Failure."""
    _need_root("remove")
    had_nft = shutil.which("nft") is not None and _try(["nft", "delete", "table", "inet", TABLE])
    return _remove_iptables() or had_nft


def _remove_iptables() -> bool:
    # All of them, also where the first had none.
    removed = [_remove_from(program) for program in _iptables_programs()]
    return any(removed)


def _remove_from(program: str) -> bool:
    had_any = False
    saved = _output([f"{program}-save", "-t", "nat"])
    for line in saved.splitlines():
        if line.startswith(("-A OUTPUT ", "-A PREROUTING ")) and line.endswith((f"-j {CHAIN}", f"-j {FORWARDED}")):
            had_any |= _try([program, "-w", "-t", "nat", "-D", *line.split()[1:]])
    for chain in (CHAIN, FORWARDED):
        if f":{chain} " in saved:
            _run([program, "-w", "-t", "nat", "-F", chain])
            _run([program, "-w", "-t", "nat", "-X", chain])
            had_any = True
    return had_any


def _iptables_programs() -> list[str]:
    """For each family that this machine has."""
    programs = ["iptables", "ip6tables"] if os.path.exists("/proc/net/if_inet6") else ["iptables"]
    return [program for program in programs if shutil.which(f"{program}-restore")]


def _need_root(verb: str) -> None:
    if os.geteuid() != 0:
        raise Failure(
            f"playhead rules {verb} changes the machine's packet rules, which only root may: run it with sudo, or let"
            " playhead rules print show what to apply"
        )


def _run(command: Sequence[str], text: str | None = None) -> None:
    done = _done(command, text)
    if done.returncode != 0:
        words = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise Failure(
            f"{command[0]} did not take the rules: {words}; nothing of Playhead's is in force that was not before:"
            " see playhead rules print"
        )


def _try(command: Sequence[str]) -> bool:
    return _done(command, None).returncode == 0


def _output(command: Sequence[str]) -> str:
    return _done(command, None).stdout


def _done(command: Sequence[str], text: str | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=WITHIN, check=False)
    except FileNotFoundError as error:
        raise Failure(f"{command[0]} is not on the PATH; install it, or choose another --format") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(
            f"{command[0]} did not end within {WITHIN:g} s; does another program hold the packet rules?"
        ) from error


def user_id(name: str) -> int:
    """A user's number, by name or number. Raises Failure."""
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise Failure(f"there is no user {name!r} on this machine; give a name or a number that id(1) knows") from error
