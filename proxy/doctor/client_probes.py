"""The clients that `doctor` probes, and the command with which each requests a URL. To add a client, add an entry."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CLIENTS = Path(__file__).parents[1] / "clients"

PROBE_TIMEOUT = 20.0
"""Seconds that one client may take. Each has a shorter timeout for its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs that a command would use."""

    path: str
    python: tuple[str, ...]
    """The command line of the command's Python, such as ("uv", "run", "python")."""

    def find(self, program: str) -> str | None:
        return shutil.which(program, path=self.path)


type Command = Callable[[Tools, str], list[str] | None]
"""Returns the command line that requests a URL, or None if the program is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One client, and the advice if it does not use the proxy by itself."""

    client: str
    command: Command
    prints_version: bool = False
    """Whether it prints its version before its request (`clients/probe.*`)."""

    escape_fix: str = "it ignores HTTPS_PROXY: set the proxy by an option of the client"
    trust_fix: str = "set the CA bundle by an option of the client: playhead ca --bundle"


def program_command(name: str, *arguments: str) -> Command:
    """Return the command of a program that takes the URL as its last argument."""

    def command(tools: Tools, url: str) -> list[str] | None:
        found = tools.find(name)
        return [found, *arguments, url] if found else None

    return command


def python_command(client: str) -> Command:
    """Return the command that uses a Python package with the Python of the user's command."""

    def command(tools: Tools, url: str) -> list[str] | None:
        return [*tools.python, str(CLIENTS / "probe.py"), client, url] if tools.python else None

    return command


def node_command(client: str) -> Command:
    return program_command("node", str(CLIENTS / "probe.cjs"), client)


JAVA_QUICK = ("-XX:+IgnoreUnrecognizedVMOptions", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options with which HotSpot compiles and runs a small program in half the time, and which change nothing of what it sends."""


def java_command(tools: Tools, url: str) -> list[str] | None:
    """Return the command line of the Java probe. Java compiles it, for which it needs a JDK."""
    found = tools.find("java")
    return [found, *JAVA_QUICK, str(CLIENTS / "Probe.java"), url] if found and tools.find("javac") else None


NO_PRELOAD = 'start node with Playhead\'s preload: eval "$(playhead env)", and do not clear NODE_OPTIONS'

PROBES: Sequence[Probe] = (
    Probe(client="curl", command=program_command("curl", "-sS", "--max-time", "15")),
    Probe(
        client="wget",
        command=program_command("wget", "-q", "-O-", "-T", "15", "-t", "1"),
        trust_fix='it reads no variable: use wget --ca-certificate="$(playhead ca --bundle)", or ca_certificate in ~/.wgetrc',
    ),
    Probe(client="git", command=program_command("git", "ls-remote")),
    Probe(client="python urllib", command=python_command("urllib"), prints_version=True),
    Probe(client="python requests", command=python_command("requests"), prints_version=True),
    Probe(client="python httpx", command=python_command("httpx"), prints_version=True),
    Probe(client="python httpx2", command=python_command("httpx2"), prints_version=True),
    Probe(
        client="python aiohttp",
        command=python_command("aiohttp"),
        prints_version=True,
        escape_fix="it needs aiohttp.ClientSession(trust_env=True) in the program (litellm reads a variable instead)",
    ),
    Probe(client="python aiohttp, trust_env", command=python_command("aiohttp_trust_env"), prints_version=True),
    Probe(client="python openai", command=python_command("openai"), prints_version=True),
    Probe(client="python anthropic", command=python_command("anthropic"), prints_version=True),
    Probe(client="node fetch", command=node_command("fetch"), prints_version=True, escape_fix=NO_PRELOAD),
    Probe(client="node https", command=node_command("https"), prints_version=True, escape_fix=NO_PRELOAD),
    Probe(client="node openai", command=node_command("openai"), prints_version=True, escape_fix=NO_PRELOAD),
    Probe(
        client="java HttpClient",
        command=java_command,
        escape_fix="it reads no proxy variable: use java -Dhttps.proxyHost=… -Dhttps.proxyPort=…",
        trust_fix="it needs a truststore with Playhead's CA: use java -Djavax.net.ssl.trustStore=…",
    ),
)


def command_tools(command: Sequence[str], base: Mapping[str, str]) -> Tools:
    """Find the programs that a command would use; without a command, those on this environment's PATH."""
    path = base.get("PATH", "")
    return Tools(path=path, python=_find_python(command, path))


def client_kind(command: Sequence[str], base: Mapping[str, str]) -> str | None:
    """Return the kind of client that a command uses, which is the first word of those clients' names; None if unknown."""
    if not command:
        return None
    found = shutil.which(command[0], path=base.get("PATH", ""))
    # For a script, look at the interpreter in its first line.
    interpreter = _script_interpreter(Path(found)) if found else None
    names = (Path(command[0]).name, *([interpreter] if interpreter else ()))
    return next((kind for name in names for kind, starts in _KIND_PATTERNS.items() if re.fullmatch(starts, name)), None)


def _script_interpreter(script: Path) -> str | None:
    """Return the name of the program in a script's first line."""
    with script.open("rb") as file:
        line = file.readline(512)
    words = line.removeprefix(b"#!").decode("utf-8", "replace").split() if line.startswith(b"#!") else []
    names = [Path(word).name for word in words if not word.startswith("-")]
    return next((name for name in names if name != "env"), None)


_KIND_PATTERNS = {
    "python": r"(python|pypy)[\d.]*|uv|uvx|poetry|pdm|hatch|pipx|pytest",
    "node": r"node|nodejs|npm|npx|pnpm|yarn|tsx|ts-node",
    "java": r"java|mvn|gradle|gradlew",
    "curl": "curl",
    "wget": "wget",
    "git": "git",
}


def _find_python(command: Sequence[str], path: str) -> tuple[str, ...]:
    match list(command):
        case [("uv" | "poetry" | "pdm" | "hatch") as runner, "run", *_]:
            return runner, "run", "python"
        case [name, *_] if (found := shutil.which(name, path=path)) is not None:
            interpreter = (
                (found,) if Path(name).name.startswith(("python", "pypy")) else _shebang_python(Path(found), path)
            )
            if interpreter:
                return interpreter
    found = shutil.which("python3", path=path) or shutil.which("python", path=path)
    return (found,) if found else ()


def _shebang_python(script: Path, path: str) -> tuple[str, ...]:
    """Return the Python in the first line of a script such as `pytest`."""
    with script.open("rb") as file:
        line = file.readline(512)
    if not line.startswith(b"#!") or b"python" not in line:
        return ()
    words = line[2:].decode("utf-8", "replace").split()
    if Path(words[0]).name != "env":
        return (words[0],)
    interpreter_name = next((word for word in words[1:] if "python" in word), "")
    found = shutil.which(interpreter_name, path=path)
    return (found,) if found else ()
