"""Overrides, forks and resumes as a user types them: the official SDK, a model and a tool server, real processes."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proxy.demo.servers import ModelHandler, TicketHandler, start_server
from tests.support.api import authorization, ready_words
from tests.support.postgres import memory_directory
from tests.support.service import command, surroundings

AGENT = Path(__file__).parent / "clients" / "desk.py"
PATIENCE = 90

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass
class World:
    """Who was really asked."""

    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, method: str, path: str) -> None:
        with self.lock:
            self.asked.append(f"{method} {path}")

    def take_requests(self) -> list[str]:
        """What was asked since the last look."""
        with self.lock:
            asked, self.asked = self.asked, []
        return asked


THIN_CLIENT = Path(__file__).parents[2] / "clients" / "pytest-playhead" / "src"
BOUND = """
import runpy, sys
import playhead
sys.argv = sys.argv[1:]
with playhead.run("ticket-904"):
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Ran:
    code: int
    said: list[dict[str, Any]]
    err: str

    @property
    def tools(self) -> list[tuple[str, int]]:
        return [(line["tool"], line["status"]) for line in self.said if "tool" in line]

    @property
    def texts(self) -> list[str]:
        return [line["text"] for line in self.said if "text" in line]


@dataclass(frozen=True)
class Place:
    """A data directory with a service on it, and a world behind it."""

    directory: Path
    world: World
    api: httpx2.Client
    proxy: str
    ca: str
    programs: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**surroundings(), "PLAYHEAD_DATA": str(self.directory / "data")}

    def agent(self, *words: str) -> list[str]:
        return ["--", str(self.programs / "python"), str(AGENT), *words]

    def __call__(self, *words: str, env: dict[str, str] | None = None) -> Ran:
        line = words if env else command(*words)
        done = subprocess.run(
            line,
            cwd=self.directory,
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Ran(done.returncode, said, done.stderr)

    def get(self, path: str) -> Any:
        answer = self.api.get(f"/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def calls(self, run: str) -> list[dict[str, Any]]:
        return list(self.get(f"/runs/{run}/calls?settled=true&fields=*")["items"])

    def overrides(self, text: str) -> str:
        path = self.directory / "what-if.toml"
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="module")
def place(module_database_url: str, programs: Path) -> Iterator[Place]:
    """A running `up --mode auto`, so that forks can be made over REST too; commands share its store server."""
    # Postgres drops to another user, who must reach it.
    directory = (memory_directory() or Path("/tmp")) / f"playhead-forks-{os.getpid()}"
    directory.mkdir(mode=0o711)
    world = World()

    class Model(ModelHandler):
        gap = 0.0

        def do_POST(self) -> None:  # noqa: N802 - the name that the base class looks for
            world.note("POST", self.path)
            super().do_POST()

    class Tickets(TicketHandler):
        def do_GET(self) -> None:  # noqa: N802 - likewise
            world.note("GET", self.path)
            super().do_GET()

        def do_POST(self) -> None:  # noqa: N802 - the name that the base class looks for
            world.note("POST", self.path)
            super().do_POST()

    servers = [start_server(Model), start_server(Tickets)]
    origins = [f"http://127.0.0.1:{server.server_port}" for server in servers]
    (directory / "playhead.toml").write_text(
        f'[upstreams]\n"api.openai.com" = "{origins[0]}"\n"tickets.example.com" = "{origins[1]}"\n'
    )
    environment = surroundings()
    flags = ("--database-url", module_database_url, "--proxy-port", "0", "--api-port", "0")
    line = command("up", "--mode", "auto", "--data", str(directory / "data"), *flags)
    up = subprocess.Popen(line, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    try:
        words = ready_words(up.stdout.readline())
        with httpx2.Client(
            base_url=words["api"], headers=authorization(words["api"]), trust_env=False, verify=False, timeout=30
        ) as api:
            yield Place(directory, world, api, words["proxy"], words["ca"], programs)
    finally:
        up.terminate()
        up.wait(15)
        up.stdout.close()
        for server in servers:
            server.shutdown()
            server.server_close()
        subprocess.run(["rm", "-rf", str(directory)], check=True)


def record_agent(place: Place, run: str, words: list[str]) -> tuple[str, list[str]]:
    ran = place("record", "--run", run, *place.agent(*words))
    assert ran.tools == [("search_tickets", 200), ("add_note", 201)], ran.err
    place.world.take_requests()
    return run, words


@pytest.fixture(scope="module")
def streamed_run(place: Place) -> tuple[str, list[str]]:
    """A recorded run, and how the agent was started for it."""
    return record_agent(place, "base-streamed", ["--stream"])


@pytest.fixture(scope="module", params=["whole", "streamed"])
def base(request: pytest.FixtureRequest, place: Place, streamed_run: tuple[str, list[str]]) -> tuple[str, list[str]]:
    """The same, also of an agent that wants its answers whole."""
    return streamed_run if request.param == "streamed" else record_agent(place, "base-whole", [])


LOGIN = """
[[override]]
match = { tool = "search_tickets", operation = "chat" }
arguments = { tool = "search_tickets", patch = [{ op = "replace", path = "/query", value = "login" }] }
"""


def test_an_edited_argument_changes_what_the_agent_does_next(place: Place, base: tuple[str, list[str]]) -> None:
    run, words = base
    child = f"login-{run}"
    file = place.overrides(LOGIN)
    allow = "POST tickets.example.com=allow"
    ran = place(
        "fork",
        run,
        "--after-step",
        "1",
        "--run",
        child,
        "--override",
        file,
        "--side-effects",
        allow,
        *place.agent(*words),
    )
    assert ran.code == 0, ran.err
    assert "Login code never arrives" in ran.texts[-1]
    assert place.world.take_requests() == [
        "GET /v2/tickets?query=login&status=open&limit=3",
        "POST /v2/tickets/T-1042/notes",
        "POST /v1/chat/completions",
    ]
    assert "1 call answered free of charge, 1 of them edited, 3 live ($0.0" in ran.err

    answer = place.get(f"/runs/{child}")
    assert (answer["parent"], answer["forked_at"], answer["calls"], answer["complete"]) == (run, 1, 4, True)
    first, *_, last = place.calls(child)
    assert [tool["arguments"]["query"] for tool in first["tool_calls"] if tool["name"] == "search_tickets"] == ["login"]
    assert (first["cost_usd"], last["cost_usd"] > 0, answer["cost_usd"]) == (0, True, last["cost_usd"])

    (place.directory / child).write_text("a file of that name, which is no recording")
    again = place("replay", child, *place.agent(*words))
    assert (again.code, again.said) == (0, ran.said), again.err
    assert "4 served, 0 missed, 0 live, 0 unused" in again.err
    assert place.world.take_requests() == []


def test_a_call_that_may_change_something_is_blocked_and_says_so(
    place: Place, streamed_run: tuple[str, list[str]]
) -> None:
    run, words = streamed_run
    child = f"blocked-{run}"
    ran = place("fork", run, "--after-step", "1", "--run", child, *place.agent(*words))
    assert ran.tools == [("search_tickets", 200), ("add_note", 403)]
    answer = ran.said[2]["answer"]
    assert "may change something at tickets.example.com, so it was not sent" in answer["detail"]
    assert (answer["error"]["type"], answer["status"]) == ("fork_blocked", 403)
    assert "1 blocked" in ran.err
    assert place.world.take_requests() == [
        "GET /v2/tickets?query=refund&status=open&limit=3",
        "POST /v1/chat/completions",
    ]
    assert [(call["status"], call["outcome"]) for call in place.calls(child)][2] == (403, "refused")


def test_tools_may_be_answered_from_what_the_parent_did_later(
    place: Place, streamed_run: tuple[str, list[str]]
) -> None:
    run, words = streamed_run
    ran = place("fork", run, "--after-step", "1", "--side-effects", "serve-recorded", *place.agent(*words))
    assert ran.tools == [("search_tickets", 200), ("add_note", 201)]
    assert place.world.take_requests() == ["POST /v1/chat/completions"]
    assert "3 calls answered free of charge, 1 live" in ran.err


def test_a_fork_at_the_end_asks_nobody(place: Place, streamed_run: tuple[str, list[str]]) -> None:
    run, words = streamed_run
    ran = place("fork", run, "--after-step", "4", *place.agent(*words))
    assert (ran.code, place.world.take_requests()) == (0, [])
    assert "4 calls answered free of charge, 0 live ($0)" in ran.err


FAULT = """
[[override]]
match = { operation = "chat", nth = 1 }
fault = { status = 429, retry_after = 0.01, times = 2 }
"""


def test_a_fault_makes_the_sdk_ask_again(place: Place, streamed_run: tuple[str, list[str]]) -> None:
    run, words = streamed_run
    report = place.directory / "report.json"
    ran = place("replay", run, "--override", place.overrides(FAULT), "--report", str(report), *place.agent(*words))
    assert ran.code == 0, ran.err
    replay_report = json.loads(report.read_text())
    assert (replay_report["served"], replay_report["edited"], replay_report["unused"], replay_report["verdict"]) == (
        4,
        2,
        0,
        "right",
    )
    assert place.world.take_requests() == []


def test_an_edited_tool_result_is_what_the_agent_sees(place: Place, streamed_run: tuple[str, list[str]]) -> None:
    run, words = streamed_run
    edit = '[[override]]\nmatch = { path = "/v2/tickets" }\ntool_result = { tickets = [], total = 0 }\n'
    ran = place("replay", run, "--override", place.overrides(edit), *place.agent(*words))
    assert ran.said[1]["answer"] == {"tickets": [], "total": 0}
    # The model was never asked about no tickets at all, and no answer is made up for it.
    assert ran.code == 1
    assert "no_match" in ran.err


def test_an_override_that_is_not_met_is_no_right_replay(place: Place, streamed_run: tuple[str, list[str]]) -> None:
    run, words = streamed_run
    idle = '[[override]]\nmatch = { host = "nobody.example.com" }\nfault = { status = 500 }\n'
    ran = place("replay", run, "--override", place.overrides(idle), *place.agent(*words))
    assert ran.code == 1
    assert "override 1 (fault status 500 at host nobody.example.com) was not used" in ran.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[override]]\nstep = 9\ntext = 'x'\n", "line 1: override 1: there is no step 9: 4 steps are answered"),
        ("\n[[override]]\nstep = 1\ntexts = 'x'\n", 'line 2: override 1: unknown "texts" in an override'),
        ("[[override]]\nstep = 2\ntext = 'x'\n", "line 1: override 1: step 2 (GET tickets.example.com/v2/tickets"),
    ],
)
def test_what_cannot_be_is_refused_before_the_command_runs(
    place: Place, streamed_run: tuple[str, list[str]], text: str, words: str
) -> None:
    run, agent = streamed_run
    ran = place("replay", run, "--override", place.overrides(text), *place.agent(*agent))
    assert (ran.code, ran.said) == (125, [])
    assert words in ran.err


def test_a_run_that_waited_for_a_person_goes_on_without_paying_again(
    place: Place, streamed_run: tuple[str, list[str]]
) -> None:
    run, words = streamed_run
    stopped = f"stopped-{run}"
    waiting = place("record", "--run", stopped, *place.agent("--ask-first", *words))
    assert waiting.said[-1] == {"waits": "for a person"}
    assert place.world.take_requests() == ["POST /v1/chat/completions"]

    ran = place(
        "resume", "last", "--run", f"resumed-{run}", "--side-effects", "tickets.example.com=allow", *place.agent(*words)
    )
    assert ran.code == 0, ran.err
    assert f"compare: playhead diff {stopped} resumed-{run}" in ran.err, "its child is the last now"
    assert ran.texts[0] == waiting.texts[0]
    assert place.world.take_requests()[0].startswith("GET /v2/tickets")
    answer = place.get(f"/runs/resumed-{run}")
    assert (answer["parent"], answer["forked_at"], answer["calls"]) == (stopped, 1, 4)


def test_a_fork_made_over_rest_is_used_by_its_name(place: Place, streamed_run: tuple[str, list[str]]) -> None:
    run, words = streamed_run
    child = f"rest-{run}"
    overrides = [{"match": {"operation": "chat", "nth": 1}, "arguments": {"tool": "search_tickets", "patch": [
        {"op": "replace", "path": "/query", "value": "login"}]}}]  # fmt: skip
    made = place.api.post(f"/v1/runs/{run}/forks", json={"from": 1, "id": child, "overrides": overrides})
    assert made.status_code == 201, made.text
    proxy = place.proxy.replace("http://", f"http://{child}:x@")
    env = {"HTTPS_PROXY": proxy, "PLAYHEAD_PROXY": proxy, "SSL_CERT_FILE": place.ca, "PYTHONPATH": str(THIN_CLIENT)}
    # What the program calls its runs does not lead out of the fork.
    (place.directory / "bound.py").write_text(BOUND)
    ran = place(str(place.programs / "python"), "bound.py", str(AGENT), *words, env=env)
    assert ran.tools == [("search_tickets", 200), ("add_note", 403)], ran.err
    assert place.world.take_requests() == [
        "GET /v2/tickets?query=login&status=open&limit=3",
        "POST /v1/chat/completions",
    ]
    report = place.get(f"/replays/{child}?settled=true")
    assert (report["edited"], report["live"], report["fork"]["blocked"], report["verdict"]) == (1, 2, 1, "right")
    assert [call["status"] for call in place.calls(child)] == [200, 200, 403, 200]
    answer = place.get(f"/runs/{child}")
    assert (answer["parent"], answer["forked_at"]) == (run, 1)
