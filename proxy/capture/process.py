"""Read a process of this machine, and find the agent that it belongs to, from /proc.

An agent is the outermost process that was started with our proxy variables. Where they were set in code instead, it is
the outermost process below the shell, session or service manager that started it. So agents that are started from one
shell, one after another, are different ones, and what an agent starts (a tool, a shell command) belongs to it.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

SHELLS: Final = frozenset(("sh", "bash", "dash", "zsh", "fish", "ksh", "mksh", "ash", "tcsh", "csh", "nu", "pwsh"))
INTERPRETERS: Final = re.compile(r"(python|pypy|node|nodejs|bun|deno|ruby|perl|php|uv|uvx|npx|env)[\d.]*")
PROXY_VARIABLES: Final = (
    b"HTTPS_PROXY=",
    b"HTTP_PROXY=",
    b"ALL_PROXY=",
    b"https_proxy=",
    b"http_proxy=",
    b"all_proxy=",
)

MOST_ANCESTORS: Final = 64
LONGEST_COMMAND: Final = 300
"""Characters of a command line that are stored."""

_SECRET: Final = re.compile(r"(?i)(key|token|secret|passw|pwd|auth|credential|cookie|bearer)")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process, told from all others of this machine by its number and its start."""

    pid: int
    started: int
    """In clock ticks since the machine started, as in /proc/PID/stat: it does not change when the clock is set."""

    parent: int
    group: int
    session: int
    terminal: int
    arguments: tuple[str, ...]
    user: int

    @property
    def run(self) -> str:
        """The run of what it does where nothing better names one."""
        name = _UNFIT.sub("-", program_name(self.arguments))[:60].strip("-.") or "process"
        return f"{name}-{self.pid}-{self.started:x}"

    @property
    def is_shell(self) -> bool:
        """Whether it is a shell, as told by its name."""
        return _base_name(self.arguments).lstrip("-") in SHELLS

    @property
    def is_interactive_shell(self) -> bool:
        """Whether it is a shell that reads its commands from a terminal or from standard input."""
        return self.is_shell and not any(one == "-c" or not one.startswith(("-", "+")) for one in self.arguments[1:])


def read_process(pid: int) -> Process | None:
    """The process with this number; None where there is none, or it may not be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read(1 << 16)
        user = os.stat(f"/proc/{pid}").st_uid
        # The name of a program stands in parentheses and may hold any others, and blanks.
        fields = stat[stat.rindex(b")") + 2 :].split()
        parent, group, session, terminal, started = (int(fields[n]) for n in (1, 2, 3, 4, 19))
    except (OSError, ValueError, IndexError):
        return None
    arguments = tuple(part.decode("utf-8", "replace") for part in line.split(b"\0")[:-1])
    return Process(
        pid=pid,
        started=started,
        parent=parent,
        group=group,
        session=session,
        terminal=terminal,
        arguments=arguments,
        user=user,
    )


def start_of_process(pid: int) -> int | None:
    """When the process with this number started; None where there is none."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        stat = os.read(descriptor, 4096)
        return int(stat[stat.rindex(b")") + 2 :].split(maxsplit=20)[19])
    except (OSError, ValueError, IndexError):
        return None
    finally:
        os.close(descriptor)


def agent_of(process: Process, port: int) -> Process:
    """The agent that a process belongs to; `port` is that of our proxy, which its variables name."""
    line = [process, *_ancestors(process)]
    started_with = [one for one in line if _has_proxy(one.pid, port)]
    return started_with[-1] if started_with else _outermost(line)


def _ancestors(process: Process) -> Iterator[Process]:
    """From the nearest on, up to the shell that somebody types into, another user's process, or ourselves."""
    ours, one = {os.getpid(), os.getppid()}, process
    for _ in range(MOST_ANCESTORS):
        above = read_process(one.parent) if one.parent > 1 else None
        if above is None or above.user != process.user or above.pid in ours or above.is_interactive_shell:
            return
        yield above
        one = above


def _outermost(line: list[Process]) -> Process:
    """The last one before a shell, or before another session."""
    found = line[0]
    for one in line[1:]:
        if one.is_shell or one.session != found.session:
            break
        found = one
    return found


def _has_proxy(pid: int, port: int) -> bool:
    """Whether a process was started with proxy variables that name a port of this machine, ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read(1 << 20)
    except OSError:
        return False
    ours = re.compile(rb"(127\.0\.0\.1|localhost|\[::1\]):%d/?$" % port)
    return any(
        one.startswith(PROXY_VARIABLES) and ours.search(one) is not None for one in environment.split(b"\0") if one
    )


def _base_name(arguments: tuple[str, ...]) -> str:
    return PurePath(arguments[0]).name if arguments else ""


def program_name(arguments: tuple[str, ...]) -> str:
    """What a person calls a program: its script or module, where an interpreter runs one."""
    name = _base_name(arguments)
    if not (INTERPRETERS.fullmatch(name) or name in SHELLS):
        return name
    rest = iter(arguments[1:])
    for one in rest:
        if one == "-m":
            return next(rest, name)
        if one in ("-c", "-e"):
            return name
        if not one.startswith("-"):
            return PurePath(one).name or name
    return name


def shown_command(arguments: tuple[str, ...]) -> str:
    """A command line with the values of options that may be secret left out."""
    shown: list[str] = []
    hide = False
    for one in arguments:
        name, equals, _ = one.partition("=")
        if hide and not one.startswith("-"):
            shown.append("***")
        elif equals and _SECRET.search(name):
            shown.append(f"{name}=***")
        else:
            shown.append(one)
        hide = one.startswith("-") and not equals and _SECRET.search(one) is not None
    text = " ".join("".join(c if c.isprintable() else " " for c in one) for one in shown)
    return text if len(text) <= LONGEST_COMMAND else text[:LONGEST_COMMAND] + "…"
