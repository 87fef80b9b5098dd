"""Read a process of this machine, and find the agent that it belongs to, from /proc.

An agent is the outermost process that was started with Playhead's proxy variables. If they were set in code instead, it
is the outermost process below the shell, session or service manager that started it. So agents that are started from one
shell are different agents, and what an agent starts (a tool, a shell command) belongs to it.
"""

import os
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

import msgspec

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

MAX_ANCESTORS: Final = 64
MAX_COMMAND_LENGTH: Final = 300
"""Characters of a command line that are stored."""

_own_processes: Final[set[int]] = set()

_SECRET: Final = re.compile(r"(?i)(key|token|secret|passw|pwd|auth|credential|cookie|bearer)")
_ILLEGAL_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process, identified by its pid and its start time."""

    pid: int
    start_time: int
    """Clock ticks since the machine booted, as in /proc/PID/stat. Setting the clock does not change it."""

    parent: int
    group: int
    session: int
    arguments: tuple[str, ...]
    user: int

    @property
    def run(self) -> str:
        """The run of the process's calls, if no better evidence names one."""
        name = _ILLEGAL_CHARACTERS.sub("-", program_name(self.arguments))[:60].strip("-.") or "process"
        return f"{name}-{self.pid}-{self.start_time:x}"

    @property
    def is_shell(self) -> bool:
        """Whether it is a shell, by its name."""
        return _base_name(self.arguments).lstrip("-") in SHELLS

    @property
    def is_interactive_shell(self) -> bool:
        """Whether it is a shell that reads its commands from a terminal or from standard input."""
        return self.is_shell and not any(one == "-c" or not one.startswith(("-", "+")) for one in self.arguments[1:])


def read_process(pid: int) -> Process | None:
    """Read the process with this pid; None if there is none, or it cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read(1 << 16)
        user = os.stat(f"/proc/{pid}").st_uid
        # The program's name is in parentheses, and may itself have parentheses and blanks.
        fields = stat[stat.rindex(b")") + 2 :].split()
        parent, group, session, start_time = (int(fields[n]) for n in (1, 2, 3, 19))
    except (OSError, ValueError, IndexError):
        return None
    arguments = tuple(part.decode("utf-8", "replace") for part in line.split(b"\0")[:-1])
    return Process(
        pid=pid,
        start_time=start_time,
        parent=parent,
        group=group,
        session=session,
        arguments=arguments,
        user=user,
    )


def start_of_process(pid: int) -> int | None:
    """Return the start time of the process with this pid; None if there is none."""
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


def find_agent(process: Process, port: int) -> Process:
    """Find the agent that a process belongs to. `port` is the proxy's port, which the agent's variables name."""
    line = [process, *_ancestors(process)]
    started_with = [one for one in line if _has_proxy(one.pid, port)]
    return started_with[-1] if started_with else _outermost_process(line)


def count_as_own(pid: int) -> None:
    """Let this process count as Playhead's own: the command whose worker this is, if that has not started it itself."""
    _own_processes.add(pid)


def _ancestors(process: Process) -> Iterator[Process]:
    """Yield the ancestors from the nearest on, up to an interactive shell, another user's process, or Playhead's own."""
    ours, one = {os.getpid(), os.getppid(), *_own_processes}, process
    for _ in range(MAX_ANCESTORS):
        above = read_process(one.parent) if one.parent > 1 else None
        if above is None or above.user != process.user or above.pid in ours or above.is_interactive_shell:
            return
        yield above
        one = above


def _outermost_process(line: list[Process]) -> Process:
    """Return the last process before a shell or another session."""
    found = line[0]
    for one in line[1:]:
        if one.is_shell or one.session != found.session:
            break
        found = one
    return found


def _has_proxy(pid: int, port: int) -> bool:
    """Whether a process was started with proxy variables that name this port of loopback."""
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
    """Return the name of a program: of its script or module, if an interpreter runs one."""
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


def redacted_command(arguments: tuple[str, ...]) -> str:
    """Return a command line without the values of options that may be secret."""
    words: list[str] = []
    hide = False
    for one in arguments:
        name, equals, _ = one.partition("=")
        if hide and not one.startswith("-"):
            words.append("***")
        elif equals and _SECRET.search(name):
            words.append(f"{name}=***")
        else:
            words.append(one)
        hide = one.startswith("-") and not equals and _SECRET.search(one) is not None
    text = " ".join("".join(c if c.isprintable() else " " for c in one) for one in words)
    return text if len(text) <= MAX_COMMAND_LENGTH else text[:MAX_COMMAND_LENGTH] + "…"
