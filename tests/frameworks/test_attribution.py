"""Calls that name no run: 27 of three concurrent tickets, in three frameworks and three habits. None may be in a wrong run.

`pytest -s tests/frameworks/test_attribution.py --frameworks=all` prints how many are in the right run, and how many are there by a guess.
"""

import asyncio
import hashlib
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from proxy.demo.servers import start_server
from proxy.processes.ports import free_port
from tests.frameworks.environments import AGENTS_SDK, LANGGRAPH, PYDANTIC_AI, Interpreters
from tests.frameworks.scripted import ScriptedApi
from tests.support.postgres import memory_directory
from tests.support.service import Service, command, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parent / "programs" / "tickets.py"
FRAMEWORKS = {"agents_sdk": AGENTS_SDK, "langgraph": LANGGRAPH, "pydantic": PYDANTIC_AI}
TICKETS = ("904", "905", "906")
HABITS = ("a process each", "one service", "playhead.run")

ALWAYS = {"one service": set(FRAMEWORKS), "a process each": {"langgraph"}, "playhead.run": {"pydantic"}}
"""In one service runs are told apart by what the frameworks send. Otherwise they are named, which is the same for all of them."""
CLIENT = Path(__file__).parents[2] / "clients" / "pytest-playhead" / "src"
EACH = 9


class Shop(ScriptedApi):
    """The model API, and a shop. Two of the tickets are of one customer, so that what is asked of it could be of both."""

    def do_GET(self) -> None:  # noqa: N802 - the name that the base class looks for
        _, kind, name = urlsplit(self.path).path.split("/")
        result = {"tickets": {"order": f"A-{name}1"}, "orders": {"customer": "c-77" if name < "A-906" else "c-88"}}
        self.answer(200, json.dumps(result.get(kind, {"customer": name})).encode())

    def do_POST(self) -> None:  # noqa: N802 - likewise
        if self.path.startswith("/v1/"):
            super().do_POST()
            return
        body = json.dumps(self.read_json(), sort_keys=True).encode()
        self.answer(200, json.dumps({"refund": f"r-{hashlib.sha256(body).hexdigest()[:8]}"}).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketCounts:
    """Where the calls of all tickets are."""

    right: int
    guessed: int
    wrong: int


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    found = free_port("127.0.0.1", 0)
    server = start_server(Shop, found)
    yield found
    server.shutdown()
    server.server_close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service(port: int, module_database_url: str) -> AsyncIterator[tuple[Service, Path]]:
    with tempfile.TemporaryDirectory(prefix="playhead-attribution-", dir=memory_directory()) as directory:
        os.chmod(directory, 0o711)
        hosts = "".join(f'"{host}" = "http://127.0.0.1:{port}"\n' for host in ("api.openai.com", "shop.example"))
        data = Path(directory) / "data"
        async with running(data, "--database-url", module_database_url, config=f"[upstreams]\n{hosts}") as service:
            yield service, data


def reading(service: Service, data: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"{service.api}/v1", headers=service.headers, trust_env=False, verify=False, timeout=60
    )


async def variables(data: Path) -> dict[str, str]:
    process = await asyncio.create_subprocess_exec(
        *command("env", "--data", str(data), "--json"), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    found: dict[str, str] = json.loads(out)
    return found


async def agent(interpreter: str, framework: str, *tickets: str, env: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(
        interpreter,
        str(PROGRAM),
        framework,
        *tickets,
        env={**os.environ, **env, "OPENAI_API_KEY": "sk-test-0123456789abcdef0123456789abcdef"},
    )
    async with asyncio.timeout(100):
        assert await process.wait() == 0


async def count_tickets(service: Service, data: Path, before: set[str]) -> TicketCounts:
    async with reading(service, data) as api:
        listed = (await api.get("/runs?limit=500&settled=true")).json()
        assert listed["settled"]
        runs = [run for run in listed["items"] if run["id"] not in before]
        calls: list[tuple[str, str, str]] = []
        for run in runs:
            level = (await api.get(f"/runs/{run['id']}")).json()["attribution"]
            found = (await api.get(f"/runs/{run['id']}/calls?limit=500&fields=*")).json()["items"]
            calls += [(run["id"], level, await ticket_of(api, call)) for call in found]
    assert len(calls) == len(TICKETS) * EACH
    most = {
        ticket: Counter(run for run, level, one in calls if one == ticket and level != "guessed") for ticket in TICKETS
    }
    own = {ticket: runs.most_common(1)[0][0] for ticket, runs in most.items() if runs}
    guessed = sum(level == "guessed" for _, level, _ in calls)
    right = sum(level != "guessed" and own[ticket] == run for run, level, ticket in calls)
    owners = Counter(own.values())
    mixed = sum(level != "guessed" and owners[run] > 1 for run, level, _ in calls)
    return TicketCounts(right=right - mixed, guessed=guessed, wrong=len(calls) - guessed - right + mixed)


async def ticket_of(api: httpx.AsyncClient, call: dict[str, Any]) -> str:
    exchange = (await api.get(f"/exchanges/{call['exchanges'][0]}")).json()
    agent = next(value for name, value in exchange["request_headers"] if name.lower() == "user-agent")
    found = re.fullmatch(r"counted/(\d+)", agent) or re.search(r"Ticket (\d+)", json.dumps(call["request"]))
    assert found, call
    return found[1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("habit", HABITS)
async def test_no_call_is_in_a_wrong_run(
    framework: str,
    habit: str,
    service: tuple[Service, Path],
    interpreters: Interpreters,
    pytestconfig: pytest.Config,
) -> None:
    if framework not in ALWAYS[habit] and pytestconfig.getoption("--frameworks") != "all":
        pytest.skip("this habit is tried with another framework: pytest tests/frameworks --frameworks=all")
    interpreter = interpreters.forking(FRAMEWORKS[framework])
    up, data = service
    async with reading(up, data) as api:
        before = {run["id"] for run in (await api.get("/runs?limit=500")).json()["items"]}
    env = await variables(data) | {"NAMES_RUN": "yes" if habit == "playhead.run" else "no", "PYTHONPATH": str(CLIENT)}
    if habit == "a process each":
        await asyncio.gather(*(agent(interpreter, framework, ticket, env=env) for ticket in TICKETS))
    else:
        await agent(interpreter, framework, *TICKETS, env=env)
    come = await count_tickets(up, data, before)
    print(f"{framework:12} {habit:16} right {come.right:2}  guessed {come.guessed:2}  wrong {come.wrong}")
    assert come.wrong == 0
    # Two tickets are of one customer: in one service, what is asked of it could be for both.
    assert come.guessed == (2 if habit == "one service" else 0)
