"""The clients that `doctor` tries, and the program with which each requests one URL. A new client is one more line."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CLIENTS = Path(__file__).parents[1] / "clients"

TRY_FOR = 20.0
"""Seconds that one client may take. Each has a shorter limit of its own for the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Where the programs are that a command would use."""

    path: str
    python: tuple[str, ...]
    """What starts the command's Python, such as ("uv", "run", "python")."""

    def find(self, program: str) -> str | None:
        return shutil.which(program, path=self.path)


type Command = Callable[[Tools, str], list[str] | None]
"""The command line that asks a URL, or None where the program is not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One client, and what to do where it does not go through of itself."""

    client: str
    command: Command
    says_version: bool = False
    """Whether it prints its version before it asks (`clients/probe.*`)."""

    escapes: str = "it ignores HTTPS_PROXY; give it the proxy by its own option"
    untrusted: str = "give it the CA bundle by its own option: playhead ca --bundle"


def program(name: str, *arguments: str) -> Command:
    """A program that takes the URL as its last argument."""

    def command(tools: Tools, url: str) -> list[str] | None:
        found = tools.find(name)
        return [found, *arguments, url] if found else None

    return command


def python(client: str) -> Command:
    """A Python package, under the Python that the command would use."""

    def command(tools: Tools, url: str) -> list[str] | None:
        return [*tools.python, str(CLIENTS / "probe.py"), client, url] if tools.python else None

    return command


def node(client: str) -> Command:
    return program("node", str(CLIENTS / "probe.cjs"), client)


def java(tools: Tools, url: str) -> list[str] | None:
    """Java compiles the probe itself, which needs a JDK."""
    found = tools.find("java")
    return [found, str(CLIENTS / "Probe.java"), url] if found and tools.find("javac") else None


NO_PRELOAD = 'start node with our preload: eval "$(playhead env)", and nothing that clears NODE_OPTIONS'

PROBES: Sequence[Probe] = (
    Probe(client="curl", command=program("curl", "-sS", "--max-time", "15")),
    Probe(
        client="wget",
        command=program("wget", "-q", "-O-", "-T", "15", "-t", "1"),
        untrusted='it reads no variable: wget --ca-certificate="$(playhead ca --bundle)", or ca_certificate in ~/.wgetrc',
    ),
    Probe(client="git", command=program("git", "ls-remote")),
    Probe(client="python urllib", command=python("urllib"), says_version=True),
    Probe(client="python requests", command=python("requests"), says_version=True),
    Probe(client="python httpx", command=python("httpx"), says_version=True),
    Probe(client="python httpx2", command=python("httpx2"), says_version=True),
    Probe(
        client="python aiohttp",
        command=python("aiohttp"),
        says_version=True,
        escapes="it needs aiohttp.ClientSession(trust_env=True) in the program (litellm is told by a variable of its own)",
    ),
    Probe(client="python aiohttp, trust_env", command=python("aiohttp_trust_env"), says_version=True),
    Probe(client="python openai", command=python("openai"), says_version=True),
    Probe(client="python anthropic", command=python("anthropic"), says_version=True),
    Probe(client="node fetch", command=node("fetch"), says_version=True, escapes=NO_PRELOAD),
    Probe(client="node https", command=node("https"), says_version=True, escapes=NO_PRELOAD),
    Probe(client="node openai", command=node("openai"), says_version=True, escapes=NO_PRELOAD),
    Probe(
        client="java HttpClient",
        command=java,
        escapes="java -Dhttps.proxyHost=… -Dhttps.proxyPort=…: it reads no proxy variable",
        untrusted="java -Djavax.net.ssl.trustStore=…: it needs a truststore with our CA",
    ),
)


def tools_of(command: Sequence[str], base: Mapping[str, str]) -> Tools:
    """The programs that a command would use: with none, those that this environment's PATH names."""
    path = base.get("PATH", "")
    return Tools(path=path, python=_python_of(command, path))


def kind_of(command: Sequence[str], base: Mapping[str, str]) -> str | None:
    """The kind of client that a command uses, by what starts it: the first word of those clients' names. None: unknown."""
    if not command:
        return None
    found = shutil.which(command[0], path=base.get("PATH", ""))
    # A script is what its first line names; python3.13 is python.
    interpreter = _interpreter(Path(found)) if found else None
    names = (Path(command[0]).name, *([interpreter] if interpreter else ()))
    return next((kind for name in names for kind, starts in _STARTS.items() if re.fullmatch(starts, name)), None)


def _interpreter(script: Path) -> str | None:
    """The name of the program that a script's first line starts."""
    with script.open("rb") as file:
        line = file.readline(512)
    words = line.removeprefix(b"#!").decode("utf-8", "replace").split() if line.startswith(b"#!") else []
    names = [Path(word).name for word in words if not word.startswith("-")]
    return next((name for name in names if name != "env"), None)


_STARTS = {
    "python": r"(python|pypy)[\d.]*|uv|uvx|poetry|pdm|hatch|pipx|pytest",
    "node": r"node|nodejs|npm|npx|pnpm|yarn|tsx|ts-node",
    "java": r"java|mvn|gradle|gradlew",
    "curl": "curl",
    "wget": "wget",
    "git": "git",
}


def _python_of(command: Sequence[str], path: str) -> tuple[str, ...]:
    match list(command):
        case [("uv" | "poetry" | "pdm" | "hatch") as runner, "run", *_]:
            return runner, "run", "python"
        case [name, *_] if (found := shutil.which(name, path=path)) is not None:
            interpreter = (found,) if Path(name).name.startswith(("python", "pypy")) else _shebang(Path(found), path)
            if interpreter:
                return interpreter
    found = shutil.which("python3", path=path) or shutil.which("python", path=path)
    return (found,) if found else ()


def _shebang(script: Path, path: str) -> tuple[str, ...]:
    """The Python that a script such as `pytest` names in its first line."""
    with script.open("rb") as file:
        line = file.readline(512)
    if not line.startswith(b"#!") or b"python" not in line:
        return ()
    words = line[2:].decode("utf-8", "replace").split()
    if Path(words[0]).name != "env":
        return (words[0],)
    named = next((word for word in words[1:] if "python" in word), "")
    found = shutil.which(named, path=path)
    return (found,) if found else ()
