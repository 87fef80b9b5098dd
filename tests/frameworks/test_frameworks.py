"""Agents written with the frameworks that people use, unmodified: recorded, then replayed with nobody left to ask.

Each lives in an environment of its own (`environments`). `pytest tests/frameworks --frameworks=all` runs those as well that
take long to install.
"""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from proxy.processes.ports import free_port
from tests.frameworks.environments import (
    AGENTS_SDK,
    AUTOGEN,
    HTTPX,
    LANGGRAPH,
    LLAMAINDEX,
    PYDANTIC_AI,
    Interpreters,
    python,
)
from tests.frameworks.scripted import ScriptedApi, serve_scripted
from tests.live.npm import install_packages, node
from tests.support.postgres import memory_directory
from tests.support.service import Service, command, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PROGRAMS = Path(__file__).parent / "programs"

FRAMEWORKS = {
    "agents_sdk": AGENTS_SDK,
    "langgraph_app": LANGGRAPH,
    "llamaindex_flow": LLAMAINDEX,
    "pydantic_agent": PYDANTIC_AI,
    "autogen_team": AUTOGEN,
}
LARGE = {"agent_group": ("crewai==1.15.30", HTTPX)}
VERCEL = (("ai", "6.0.326"), ("@ai-sdk/openai", "3.0.141"), ("zod", "4.6.7"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCommand:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def served_count(self) -> int:
        """How many calls the replay answered; fails unless it was right in every respect."""
        assert self.code == 0, self.err
        found = re.search(r"(\d+) served, 0 missed, 0 live, 0 unused", self.err)
        assert found, self.err
        return int(found[1])


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Outside pytest's own directories: as root Postgres runs as another user, who must be able to pass through."""
    with tempfile.TemporaryDirectory(prefix="playhead-frameworks-", dir=memory_directory()) as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


@pytest.fixture(scope="module")
def tools_port() -> int:
    """Where an MCP server will listen."""
    return free_port("127.0.0.1", 0)


@pytest.fixture(scope="module")
def port() -> int:
    """Where the stand-in answers while a test records, and nobody else."""
    return free_port("127.0.0.1", 0)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service(place: Path, port: int, tools_port: int, module_database_url: str) -> AsyncIterator[Service]:
    config = (
        f'[upstreams]\n"api.openai.com" = "http://127.0.0.1:{port}"\n"weather.example" = "http://127.0.0.1:{port}"\n'
        f'"tools.example" = "http://127.0.0.1:{tools_port}"\n'
    )
    async with running(place / "data", "--database-url", module_database_url, config=config) as service:
        yield service


async def playhead(place: Path, *arguments: str) -> EndedCommand:
    verb, *rest = arguments
    line = command(verb, "--data", str(place / "data"), *rest)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PLAYHEAD_", "PYTHONDONTWRITE"))}
    process = await asyncio.create_subprocess_exec(
        *line,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**env, "OPENAI_API_KEY": "sk-test-0123456789abcdef0123456789abcdef", "OTEL_SDK_DISABLED": "true"},
    )
    async with asyncio.timeout(100):
        out, err = await process.communicate()
    assert process.returncode is not None
    return EndedCommand(code=process.returncode, out=out.decode(), err=err.decode())


async def recorded_then_replayed(place: Path, port: int, name: str, lines: Sequence[Sequence[str]]) -> str:
    """What the program said both times. There is a command line for each of the two."""
    with serve_scripted(port):
        first = await playhead(place, "record", "--run", name, "--", *lines[0])
        asked = len(ScriptedApi.asked)
    assert first.code == 0, first.err
    second = await playhead(place, "replay", name, "--", *lines[-1])
    assert second.out == first.out, second.err
    assert second.served_count >= asked > 0
    return first.out


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_framework_s_agent_is_replayed_without_a_miss(
    framework: str, place: Path, port: int, service: Service, interpreters: Interpreters
) -> None:
    """It is recorded as a user starts it, with all that the framework does when it is imported."""
    interpreter = str(python(*FRAMEWORKS[framework].requirements))
    forking = interpreters.forking(FRAMEWORKS[framework])
    program = str(PROGRAMS / f"{framework}.py")
    in_earnest = (interpreter, str(PROGRAMS / "uncollected.py"), program)
    replayed = in_earnest if forking == interpreter else (forking, program)
    out = await recorded_then_replayed(place, port, framework, (in_earnest, replayed))
    assert "Both are fine." in out or "fine" in json.dumps(json.loads(out))


async def test_langgraph_goes_on_from_its_own_checkpoint(
    place: Path, port: int, service: Service, interpreters: Interpreters
) -> None:
    """What the checkpoint holds is not asked for again, and `resume` is right all the same."""
    words = (
        interpreters.forking(LANGGRAPH),
        str(PROGRAMS / "langgraph_waiting.py"),
        str(place / "checkpoints.sqlite"),
    )
    with serve_scripted(port):
        waiting = await playhead(place, "record", "--run", "waiting", "--", *words)
        assert (waiting.code, waiting.out) == (0, "waits for a person\n"), waiting.err
        config = ("--config", str(place / "data.toml"))
        resumed = await playhead(place, "resume", "waiting", "--run", "resumed", *config, "--", *words)
    assert (resumed.code, resumed.out) == (0, "Both are fine.\n"), resumed.err
    assert "step 1 was not asked for again: the command went on from a checkpoint of its own" in resumed.err


@pytest.mark.parametrize("framework", LARGE)
@pytest.mark.timeout(600)
async def test_a_large_framework_s_agent_is_replayed_without_a_miss(
    framework: str, place: Path, port: int, service: Service, pytestconfig: pytest.Config
) -> None:
    if pytestconfig.getoption("--frameworks") != "all":
        pytest.skip(f"{', '.join(LARGE[framework])} takes long to install: pytest tests/frameworks --frameworks=all")
    interpreter = str(python(*LARGE[framework], limit=500))
    line = (interpreter, str(PROGRAMS / f"{framework}.py"))
    out = await recorded_then_replayed(place, port, framework, [line])
    assert "It is fine." in out


async def test_node_s_ai_sdk_is_replayed_without_a_miss(place: Path, port: int, service: Service) -> None:
    modules = install_packages(VERCEL)
    program = modules / "vercel.mjs"  # Node looks for packages from where a module lies
    program.write_bytes((PROGRAMS / "vercel.mjs").read_bytes())
    out = await recorded_then_replayed(place, port, "vercel", [(node(), str(program))])
    answer = json.loads(out)
    assert answer["said"] == "Both are fine."
    assert len(answer["results"]) == 2


async def test_an_agent_s_tools_behind_mcp_are_replayed_without_a_miss(
    place: Path, port: int, tools_port: int, service: Service, interpreters: Interpreters
) -> None:
    interpreter = interpreters.forking(AGENTS_SDK)
    server = await asyncio.create_subprocess_exec(
        interpreter,
        str(PROGRAMS / "mcp_server.py"),
        str(tools_port),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert server.stderr is not None
        async with asyncio.timeout(30):
            while b"running on" not in await server.stderr.readline():
                assert server.returncode is None
        with serve_scripted(port):
            first = await playhead(place, "record", "--run", "mcp", "--", interpreter, str(PROGRAMS / "mcp_agent.py"))
    finally:
        server.kill()
        await server.wait()
    assert first.code == 0, first.err
    second = await playhead(place, "replay", "mcp", "--", interpreter, str(PROGRAMS / "mcp_agent.py"))
    assert second.out == first.out, second.err
    assert second.served_count > 4
