"""Print, apply and remove the packet rules that redirect other users' connections to `playhead up --transparent`.

The user that runs Playhead is always excluded: its connections to upstreams would come back to it.
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
"""The default port of `up --transparent`."""

PORTS: Final = (80, 443)
TABLE: Final = "playhead"
CHAIN: Final = "PLAYHEAD"
FORWARDED: Final = "PLAYHEAD_FORWARDED"

MAX_PORTS_PER_RULE: Final = 15
"""The maximum number of ports in one rule of iptables (its multiport match)."""

COMMAND_TIMEOUT: Final = 30.0
"""Seconds that nft or iptables may take. Another program may hold the lock of the tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Which connections are redirected."""

    port: int = TRANSPARENT_PORT
    """The port of `up --transparent`."""

    ports: tuple[int, ...] = PORTS
    """The destination ports that are redirected."""

    excluded_users: tuple[int, ...]
    """User ids whose connections are not redirected, Playhead's among them."""

    users: tuple[int, ...] = ()
    """User ids whose connections are redirected; empty: all but the excluded ones."""

    interfaces: tuple[str, ...] = ()
    """Interfaces whose incoming connections, from containers or other machines, are also redirected."""


def nft_text(rules: Rules) -> str:
    """Return a file for `nft -f`. It replaces the whole table, so it can be applied again."""
    redirect = f"tcp dport {{ {_join_numbers(rules.ports)} }} redirect to :{rules.port}"
    chains = [
        _nft_chain(
            "output",
            f'oifname "lo" return\nmeta skuid {{ {_join_numbers(rules.excluded_users)} }} return',
            f"meta skuid {{ {_join_numbers(rules.users)} }} {redirect}" if rules.users else redirect,
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
    """Return a file for `iptables-restore --noflush` and `ip6tables-restore --noflush`."""
    dports = [
        rules.ports[start : start + MAX_PORTS_PER_RULE] for start in range(0, len(rules.ports), MAX_PORTS_PER_RULE)
    ]
    redirects = [
        f"-p tcp -m multiport --dports {_join_numbers(part, ',')} -j REDIRECT --to-ports {rules.port}"
        for part in dports
    ]
    owners = [f"-m owner --uid-owner {user} " for user in rules.users] or [""]
    lines = [
        "*nat",
        f":{CHAIN} - [0:0]",
        *([f":{FORWARDED} - [0:0]"] if rules.interfaces else []),
        f"-A {CHAIN} -o lo -j RETURN",
        *(f"-A {CHAIN} -m owner --uid-owner {user} -j RETURN" for user in rules.excluded_users),
        *(f"-A {CHAIN} {owner}{redirect}" for owner in owners for redirect in redirects),
        f"-A OUTPUT -p tcp -j {CHAIN}",
    ]
    if rules.interfaces:
        lines.append(f"-A {FORWARDED} -m addrtype --dst-type LOCAL -j RETURN")
        lines += [f"-A {FORWARDED} {redirect}" for redirect in redirects]
        lines += [f"-A PREROUTING -i {name} -p tcp -j {FORWARDED}" for name in rules.interfaces]
    return "\n".join([*lines, "COMMIT", ""])


def _join_numbers(values: Sequence[int], separator: str = ", ") -> str:
    return separator.join(str(value) for value in values)


# Apply and remove


def available_format() -> Format:
    """Return the format that this machine supports: nft, else iptables. Raises Failure if it has neither."""
    if shutil.which("nft"):
        return "nft"
    if shutil.which("iptables"):
        return "iptables"
    raise Failure(
        "neither nft nor iptables is on the PATH: install nftables (apt-get install nftables), or print the rules with"
        " --format and apply them elsewhere"
    )


def apply_rules(rules: Rules, text_format: Format) -> None:
    """Apply the rules, in place of earlier ones of either format. Raises Failure."""
    _require_root("apply")
    if text_format == "nft":
        _run_checked(["nft", "-f", "-"], nft_text(rules))
        _remove_iptables()
        return
    _remove_iptables()
    for program in _iptables_programs():
        _run_checked([f"{program}-restore", "--noflush", "--wait"], iptables_text(rules))
    _remove_nft()


def remove_rules() -> bool:
    """Remove the rules of both formats, and return whether there were any. Raises Failure."""
    _require_root("remove")
    had_nft = _remove_nft()
    return _remove_iptables() or had_nft


def _remove_nft() -> bool:
    return shutil.which("nft") is not None and _try_command(["nft", "delete", "table", "inet", TABLE])


def _remove_iptables() -> bool:
    # A list, so that all programs run even if the first had rules.
    removed = [_remove_from(program) for program in _iptables_programs()]
    return any(removed)


def _remove_from(program: str) -> bool:
    had_any = False
    saved = _command_output([f"{program}-save", "-t", "nat"])
    for line in saved.splitlines():
        if line.startswith(("-A OUTPUT ", "-A PREROUTING ")) and line.endswith((f"-j {CHAIN}", f"-j {FORWARDED}")):
            had_any |= _try_command([program, "-w", "-t", "nat", "-D", *line.split()[1:]])
    for chain in (CHAIN, FORWARDED):
        if f":{chain} " in saved:
            _run_checked([program, "-w", "-t", "nat", "-F", chain])
            _run_checked([program, "-w", "-t", "nat", "-X", chain])
            had_any = True
    return had_any


def _iptables_programs() -> list[str]:
    """Return the programs for the address families that this machine has."""
    programs = ["iptables", "ip6tables"] if os.path.exists("/proc/net/if_inet6") else ["iptables"]
    return [program for program in programs if shutil.which(f"{program}-restore")]


def _require_root(verb: str) -> None:
    if os.geteuid() != 0:
        raise Failure(
            f"playhead rules {verb} changes the machine's packet rules, which only root may do: run it with sudo, or use"
            " playhead rules print to see what to apply"
        )


def _run_checked(command: Sequence[str], text: str | None = None) -> None:
    result = _run_program(command, text)
    if result.returncode != 0:
        reason = " ".join(result.stderr.split()) or f"status {result.returncode}"
        raise Failure(
            f"{command[0]} refused the rules: {reason}; no new rules of Playhead are in force: see playhead rules print"
        )


def _try_command(command: Sequence[str]) -> bool:
    return _run_program(command, None).returncode == 0


def _command_output(command: Sequence[str]) -> str:
    return _run_program(command, None).stdout


def _run_program(command: Sequence[str], text: str | None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False)
    except FileNotFoundError as error:
        raise Failure(f"{command[0]} is not on the PATH: install it, or choose another --format") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(
            f"{command[0]} did not end within {COMMAND_TIMEOUT:g} s; does another program hold the packet rules?"
        ) from error


def user_id(name: str) -> int:
    """Return a user's id, by name or number. Raises Failure."""
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise Failure(f"there is no user {name!r} on this machine: use a name or a number that id(1) knows") from error
