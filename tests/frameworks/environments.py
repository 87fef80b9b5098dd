"""An environment of its own for each framework: made once with uv, or else pip, and kept where temporary files are kept."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.support.shells import started_interpreter

HTTPX: Final = "httpx==0.28.1"


@dataclass(frozen=True, slots=True)
class Framework:
    """What to install, and the modules that agents of this framework import."""

    requirements: tuple[str, ...]
    modules: tuple[str, ...]


OPENAI: Final = ("openai", "openai.resources.chat.completions.completions")
AGENTS_SDK: Final = Framework(
    ("openai-agents==0.24.0", HTTPX), ("agents", "agents.mcp", "mcp.server.mcpserver", *OPENAI)
)
LANGGRAPH: Final = Framework(
    ("langgraph==1.2.22", "langgraph-checkpoint-sqlite==3.1.2", "langchain-openai==1.7.3", HTTPX),
    ("langgraph.graph", "langgraph.checkpoint.sqlite", "langchain_core.tools", "langchain_openai", *OPENAI),
)
LLAMAINDEX: Final = Framework(
    ("llama-index-core==0.14.25", "llama-index-llms-openai==0.8.3", HTTPX),
    ("llama_index.core.agent.workflow", "llama_index.llms.openai", *OPENAI),
)
PYDANTIC_AI: Final = Framework(
    ("pydantic-ai-slim[openai]==2.68.0", "opentelemetry-sdk", HTTPX),
    ("pydantic_ai", "pydantic_ai.models.openai", *OPENAI),
)
MISTRAL: Final = ("mistralai==3.7.0", "pytest>=8")
AUTOGEN: Final = Framework(("autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5", HTTPX), ())


class Interpreters:
    """Interpreters of frameworks that have imported the framework once, and run each program as a fork of that process."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._started: dict[Framework, Path] = {}

    def forking(self, framework: Framework) -> str:
        """A program that runs `python FILE` in this framework's environment."""
        if framework not in self._started:
            interpreter = python(*framework.requirements)
            if not framework.modules:
                return str(interpreter)
            self._started[framework] = self._opened.enter_context(started_interpreter(interpreter, framework.modules))
        return str(self._started[framework])

    def close(self) -> None:
        """End those processes."""
        self._opened.close()


def python(*requirements: str, limit: float = 100) -> Path:
    """The interpreter of an environment that holds them; where it cannot be made, the test is skipped and says why."""
    found = _make_environment(requirements, limit)
    return (
        found
        if isinstance(found, Path)
        else pytest.skip(f"{', '.join(requirements)} cannot be installed here: {found}")
    )


@cache
def _make_environment(requirements: tuple[str, ...], limit: float) -> Path | str:
    """The interpreter, or why there is none."""
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:12]
    place = Path(tempfile.gettempdir()) / f"playhead-framework-{os.getuid()}-{digest}"
    interpreter = place / "bin" / "python"
    if (place / "done").exists():
        return interpreter
    # Others may be making the same one: each makes its own, and the first to be done is kept.
    making = Path(tempfile.mkdtemp(prefix=f"{place.name}-"))
    if said := _install(making, requirements, limit):
        shutil.rmtree(making, ignore_errors=True)
        return said
    (making / "done").touch()
    try:
        making.rename(place)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
    return interpreter


def _install(place: Path, requirements: tuple[str, ...], limit: float) -> str | None:
    """Why it failed; None where it did not."""
    interpreter = str(place / "bin" / "python")
    if uv := _uv():
        lines = [
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(place)],
            [uv, "pip", "install", "--quiet", "--only-binary", ":all:", "--python", interpreter, *requirements],
        ]
    else:
        lines = [
            [sys.executable, "-m", "venv", str(place)],
            [interpreter, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *requirements],
        ]
    for line in lines:
        try:
            done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            return f"it took more than {limit:.0f} s"
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["it failed without a word"])[-1]
    return None


def _uv() -> str | None:
    own = Path(__file__).parents[2] / ".uv" / "bin" / "uv"
    return os.environ.get("PLAYHEAD_UV") or shutil.which("uv") or (str(own) if own.exists() else None)
