"""The demo's story, its servers, its agent and its cut: the story with stand-ins for the commands, the rest as it is."""

import asyncio
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.demo import model, offline, service
from proxy.demo.demo import Story, prepare_directory, run_story
from proxy.demo.screen import Screen
from proxy.demo.servers import ModelHandler, TicketHandler, start_server
from proxy.demo.service import Shell
from proxy.errors import Failure

PLAYHEAD = """\
#!/bin/sh
verb=$1
if [ "$verb" = up ]; then
    {up}
    echo $$ > up.pid
    echo "ready proxy=http://127.0.0.1:1 api=http://127.0.0.1:2 ca=/ca.pem"
    cat > /dev/null
    exit
fi
echo "$PLAYHEAD_DATA" >> data-seen
case $verb in show) echo "STEP CALL"; exit ;; export) echo "wrote $4" >&2; exit ;; esac
while [ "$1" != -- ]; do shift; done
shift
export VERB=$verb
"$@"
code=$?
echo "playhead: $verb told" >&2
exit $code
"""

PYTHON = """\
#!/bin/sh
echo "user    $*"
{agent}
echo "received 4 answers, 25 bytes, sha256:00"
"""

MISSING = '[ $# -gt 1 ] && { echo "agent: stopped by status 424" >&2; exit 1; }'


@pytest.fixture
def screen() -> Screen:
    return Screen(io.StringIO(), {})


def story(tmp_path: Path, screen: Screen, *, agent: str = MISSING, up: str = "") -> Story:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("playhead", PLAYHEAD.format(up=up)), ("python", PYTHON.format(agent=agent))):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    shell = prepare_directory(tmp_path / "home")
    return Story(
        shell=Shell(directory=shell.directory, programs=programs), screen=screen, run="demo-0000", offline=False
    )


def screen_text(screen: Screen) -> str:
    assert isinstance(screen.out, io.StringIO)
    return screen.out.getvalue()


def lives(pid: str) -> bool:
    status = Path(f"/proc/{pid.strip()}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


async def test_the_demo_runs_to_its_end(tmp_path: Path, screen: Screen) -> None:
    assert await run_story(story(tmp_path, screen)) == 0
    text = screen_text(screen)
    for words in (
        "$ playhead record --run demo-0000 -- python agent.py",
        "STEP CALL",
        "the same, byte for byte",
        "next",
    ):
        assert words in text
    assert "\033" not in text


async def test_it_leaves_nothing_running_and_keeps_to_its_directory(tmp_path: Path, screen: Screen) -> None:
    await run_story(story(tmp_path, screen))
    home = tmp_path / "home"
    assert not lives((home / "up.pid").read_text())
    assert set((home / "data-seen").read_text().split()) == {str(home / "data")}


async def test_other_bytes_are_not_called_the_same(tmp_path: Path, screen: Screen) -> None:
    differing = MISSING + '; [ "$VERB" = replay ] && echo "model   something else"'
    assert await run_story(story(tmp_path, screen, agent=differing)) == 1
    assert "NOT the same" in screen_text(screen)
    assert "+model   something else" in screen_text(screen)


async def test_an_answer_to_a_question_never_asked_is_a_failure(tmp_path: Path, screen: Screen) -> None:
    assert await run_story(story(tmp_path, screen, agent="")) == 1
    assert "this should have missed" in screen_text(screen)


async def test_a_service_that_does_not_start_is_quoted(tmp_path: Path, screen: Screen) -> None:
    with pytest.raises(Failure, match="did not start: playhead: no room"):
        await run_story(story(tmp_path, screen, up='echo "playhead: no room" >&2; exit 125'))


async def test_an_agent_that_fails_while_it_is_recorded_is_quoted(tmp_path: Path, screen: Screen) -> None:
    with pytest.raises(Failure, match="could not be recorded: broken"):
        await run_story(story(tmp_path, screen, agent="echo broken >&2; exit 3"))


async def test_ctrl_c_ends_what_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STOP_TIMEOUT", 0.5)
    terminal = WatchedTerminal("waiting for a model")
    hanging = story(tmp_path, Screen(terminal, {}), agent="echo $$ > agent.pid; echo waiting for a model; sleep 600")

    async def interrupt_story() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_story(hanging))
            await terminal.seen.wait()
            raise CtrlC

    with pytest.raises(CtrlC):
        await interrupt_story()
    home = hanging.shell.directory
    assert not lives((home / "up.pid").read_text())
    assert not lives((home / "agent.pid").read_text())


class CtrlC(KeyboardInterrupt):
    """Ctrl-C, where a test can catch it."""


class WatchedTerminal(io.StringIO):
    """A terminal that tells when certain words are on it."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.seen = asyncio.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.words in self.getvalue():
            self.seen.set()
        return written


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match="choose another with --home"):
        prepare_directory(tmp_path / "file" / "home")


def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(Failure, match="belongs to another user; choose another with --home"):
        prepare_directory(tmp_path)


def test_colour_is_for_those_who_see_it() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for environment, coloured in (
        ({}, True),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
    ):
        terminal = Terminal()
        Screen(terminal, environment).print_success("well")
        assert ("\033[32m" in terminal.getvalue()) is coloured


@given(st.text(st.sampled_from("ab \n"), max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_how_output_arrives_does_not_matter(text: str, cuts: list[int]) -> None:
    at_once, in_pieces = Screen(io.StringIO(), {}), Screen(io.StringIO(), {})
    at_once.print_output(text)
    edges = [0, *sorted(cuts), len(text)]
    for begin, end in itertools.pairwise(edges):
        in_pieces.print_output(text[begin:end])
    assert screen_text(in_pieces) == screen_text(at_once)
    assert all(len(line) <= at_once.width for line in screen_text(at_once).split("\n"))


@pytest.fixture
def model_api() -> Iterator[str]:
    yield from serving(start_server(ModelHandler))


@pytest.fixture
def tickets_api() -> Iterator[str]:
    yield from serving(start_server(TicketHandler))


def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def test_the_agent_talks_to_the_model_and_both_tools(
    model_api: str, tickets_api: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from proxy.demo import agent

    monkeypatch.setattr(agent, "MODEL_API", f"{model_api}/v1")
    monkeypatch.setattr(agent, "TICKETS_API", f"{tickets_api}/v2")
    monkeypatch.setattr(sys, "argv", ["agent.py"])
    await asyncio.to_thread(agent.main)
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == [
        "user", "model", "tool", "tool", "model", "received",
    ]  # fmt: skip
    assert "There are 3 open tickets." in out
    assert "received 4 answers" in out


@pytest.mark.parametrize("with_tools", [False, True])
def test_a_stream_says_what_the_whole_answer_says(with_tools: bool) -> None:
    said = (
        model.plan_tool_calls("any refunds?") if with_tools else model.summarize_results([{"tickets": [], "total": 0}])
    )
    whole = json.loads(model.whole_answer(said, 400))
    events = [json.loads(piece[6:]) for piece in list(model.streamed_answer(said, 400, with_usage=True))[:-1]]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for index, call in enumerate(message.get("tool_calls", ())):
        arguments = "".join(piece["function"]["arguments"] for piece in pieces if piece["index"] == index)
        assert arguments == call["function"]["arguments"]
    assert events[-1]["usage"] == whole["usage"]


def test_no_two_answers_have_one_id(model_api: str) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "refund?"}]}
    ids = {httpx2.post(f"{model_api}/v1/chat/completions", json=asked, timeout=60).json()["id"] for _ in range(3)}
    assert len(ids) == 3, "else a replay could not be told from asking again"


def test_an_unknown_endpoint_is_said_to_be_unknown(model_api: str, tickets_api: str) -> None:
    assert httpx2.post(f"{model_api}/v1/other", json={"messages": []}, timeout=60).status_code == 404
    assert httpx2.get(f"{tickets_api}/v2/other", timeout=60).status_code == 404
    assert httpx2.post(f"{tickets_api}/v2/other", json={}, timeout=60).status_code == 404


def test_the_servers_end_with_whoever_started_them() -> None:
    line = [sys.executable, "-m", "proxy.demo.servers"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as servers:
        assert servers.stdin is not None
        assert servers.stdout is not None
        assert json.loads(servers.stdout.readline())["ready"] is True
        servers.stdin.close()
        assert servers.wait(60) == 0


ASK = """
import json, socket, sys
own = socket.create_server(("127.0.0.1", 0))
socket.create_connection(own.getsockname()).close()
def is_reached(address):
    try:
        socket.create_connection(address, 2).close()
        return True
    except OSError:
        return False
print(json.dumps([is_reached(("127.0.0.1", int(sys.argv[1]))), is_reached(("203.0.113.1", 80)), is_reached(("example.com", 80))]))
"""


def test_a_cut_off_program_reaches_nothing_but_itself(model_api: str) -> None:
    if not offline.can_leave_network():
        pytest.skip("this kernel or container lets nobody have a network namespace")
    line = offline.without_network([sys.executable, "-c", ASK, model_api.rpartition(":")[2]])
    out = subprocess.run(line, capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == [False, False, False]


def test_who_is_not_root_can_be_cut_off_too() -> None:
    if os.geteuid() != 0 or not offline.can_leave_network():
        pytest.skip("only root can become somebody else to try it")
    # PR_SET_DUMPABLE: without an execve the kernel keeps /proc/self for root after a change of user.
    become = (
        "import ctypes, os; from proxy.demo import offline; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0); offline.leave_network(); print(os.getuid(), os.listdir('/sys/class/net'))"
    )
    out = subprocess.run([sys.executable, "-c", become], capture_output=True, text=True, check=False)
    if "Operation not permitted" in out.stderr or "No space left" in out.stderr:
        pytest.skip("this kernel lets only root have a network namespace")
    assert out.stdout.startswith("65534"), out.stderr
