"""Every client of a suite is seen, however it is created and wherever it runs; the suites themselves are unchanged."""

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.clients.suite_directory import SuiteDirectory

pytestmark = pytest.mark.slow


def record_then_replay(
    suite: SuiteDirectory, *arguments: str, passed: int, plugins: tuple[str, ...] = (), forked: bool = True
) -> None:
    """Record, then replay without a request to the upstream. `forked`: whether the first pytest is a fork as well."""
    ran = suite.pytest("--record-mode=once", *arguments, plugins=plugins, forked=forked)
    assert ran.counts == {"passed": passed}, ran.out
    suite.upstream_requests.clear()
    ran = suite.pytest(*arguments, plugins=plugins)
    assert ran.counts == {"passed": passed}, ran.out
    assert not suite.upstream_requests


ASKING = """
MESSAGES = [{"role": "user", "content": "any refunds?"}]
ASK = {"model": "example-large", "messages": MESSAGES}
"""


@pytest.mark.parametrize("engine", ["mitmproxy", "lane"])
def test_clients_of_all_kinds(suite: SuiteDirectory, engine: str) -> None:
    config = suite.directory / "playhead.toml"
    config.write_text(f'engine = "{engine}"\n{config.read_text()}')
    suite.write(
        "test_kinds.py",
        ASKING
        + """
import asyncio, json, subprocess
import httpx, openai, pytest, requests

URL = "https://tickets.example.com/v2/tickets"

@pytest.mark.playhead
def test_openai_streaming():
    stream = openai.OpenAI().chat.completions.create(**ASK, stream=True)
    assert len([event for event in stream]) > 3

@pytest.mark.playhead
def test_openai_async_side_by_side():
    async def both():
        async with openai.AsyncOpenAI() as client:
            async def stream():
                return [event async for event in await client.chat.completions.create(**ASK, stream=True)]
            return await asyncio.gather(client.chat.completions.create(**ASK), stream())
    said, events = asyncio.run(both())
    assert said.choices[0].message.tool_calls and events

@pytest.mark.playhead
def test_requests_and_httpx():
    assert requests.get(URL, timeout=60).json()["asked"]
    assert httpx.get(URL + "?q=2", timeout=60).json()["asked"]

@pytest.mark.playhead
def test_a_program():
    done = subprocess.run(["curl", "-sS", URL + "?q=3"], capture_output=True, check=True)
    assert json.loads(done.stdout)["asked"]
""",
    )
    # With one engine the recording pytest is no fork: these clients are imported as in a suite of its own.
    record_then_replay(suite, passed=4, forked=engine == "mitmproxy")


IMPORTED = (
    ASKING
    + """
import openai, pytest
own_client = openai.OpenAI()

@pytest.mark.playhead
def test_own_client():
    assert own_client.chat.completions.create(**ASK)

@pytest.mark.playhead
def test_client_of_conftest(client):
    assert client.chat.completions.create(**ASK)
"""
)


def test_clients_that_a_module_or_a_conftest_made_at_import_are_seen_where_the_ini_file_says_so(
    suite: SuiteDirectory,
) -> None:
    suite.write("pytest.ini", "[pytest]\nplayhead = true\n")
    suite.write(
        "conftest.py", "import openai, pytest\nCLIENT = openai.OpenAI()\n@pytest.fixture\ndef client(): return CLIENT\n"
    )
    suite.write("test_imported.py", IMPORTED)
    record_then_replay(suite, passed=2, forked=False)


def test_each_test_of_a_module_has_its_own_recording_though_they_share_a_client(suite: SuiteDirectory) -> None:
    suite.write("pytest.ini", "[pytest]\nplayhead = true\n")
    suite.write(
        "test_shared.py",
        """
import httpx, pytest
client = httpx.Client(timeout=60, base_url="https://tickets.example.com")

class TestTickets:
    @pytest.mark.playhead
    @pytest.mark.parametrize("query", ["a", "b/ü", "c" * 200])
    def test_found(self, query):
        assert client.get("/v2/tickets", params={"query": query}).json()["asked"]
""",
    )
    record_then_replay(suite, passed=3)
    names = sorted(path.name for path in (suite.directory / "recordings" / "test_shared").iterdir())
    assert names[0] == "TestTickets.test_found[a].jsonl"
    assert len(names) == 3
    assert all(len(name) < 130 and name.isascii() for name in names)
    one = suite.pytest("test_shared.py::TestTickets::test_found[a]")
    assert one.counts == {"passed": 1}, one.out


def test_workers_of_xdist_do_not_get_into_each_other_s_way(suite: SuiteDirectory) -> None:
    suite.write("pytest.ini", "[pytest]\nplayhead = true\n")
    suite.write(
        "test_many.py",
        """
import httpx, pytest
client = httpx.Client(timeout=60, base_url="https://tickets.example.com")

@pytest.mark.playhead
@pytest.mark.parametrize("query", range(6))
def test_found(query):
    for n in range(3):
        assert client.get("/v2/tickets", params={"query": query, "n": n}).json()["path"] == f"/v2/tickets?query={query}&n={n}"
""",
    )
    outcome = suite.pytest("-n", "2", "--record-mode=all", plugins=("xdist",))
    assert outcome.counts == {"passed": 6}, outcome.out
    assert outcome.out.count("holds 3 calls, recorded just now") == 6
    assert len(list((suite.directory / "recordings" / "test_many").iterdir())) == 6
    suite.upstream_requests.clear()
    # They share one process, and each restarted worker connects to it as well.
    suite.write(
        "test_more.py",
        """
import os, pathlib, pytest

def test_that_kills_its_worker():
    os._exit(3)

def test_the_process_is_shared():
    digest, _, address = os.environ["PLAYHEAD_PYTEST_SHARED"].partition(":")
    assert len(digest) == 64
    # One socket listens, and each worker of xdist has one connection to it.
    lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
    assert 2 <= sum(line.endswith(f" {address}") for line in lines) <= 3
""",
    )
    ran = suite.pytest("-n", "2", plugins=("xdist",), TMPDIR=str(suite.directory))
    assert ran.counts == {"failed": 1, "passed": 7}, ran.out
    assert "crashed while running 'test_more.py::test_that_kills_its_worker'" in ran
    assert not suite.upstream_requests
    assert not list(suite.directory.glob("playhead-*"))


def test_asyncio_tests(suite: SuiteDirectory) -> None:
    suite.write("pytest.ini", "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n")
    suite.write(
        "test_async.py",
        """
import aiohttp, httpx, pytest

@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=60, base_url="https://tickets.example.com") as made:
        yield made

@pytest.mark.playhead
async def test_it(client):
    assert (await client.get("/v2/tickets")).json()["asked"]

@pytest.mark.playhead
async def test_one_that_knew_whom_to_trust_when_it_was_imported():
    async with aiohttp.ClientSession(trust_env=True) as session, session.get("https://tickets.example.com/") as answer:
        assert await answer.read()
""",
    )
    record_then_replay(suite, passed=2, plugins=("asyncio",))


def test_a_recording_of_vcr_is_answered_from_as_it_lies(suite: SuiteDirectory) -> None:
    suite.write(
        "cassettes/tickets.yaml",
        """\
        version: 1
        interactions:
        - request: {method: GET, uri: 'https://tickets.example.com/v2/tickets', body: null, headers: {Accept: ['*/*']}}
          response:
            status: {code: 200, message: OK}
            headers: {content-type: [application/json]}
            body: {string: '{"from": "a cassette"}'}
        """,
    )
    suite.write(
        "test_old.py",
        """
        import pytest, requests

        @pytest.mark.playhead(file="cassettes/tickets.yaml")
        def test_it():
            assert requests.get("https://tickets.example.com/v2/tickets", timeout=60).json() == {"from": "a cassette"}

        @pytest.mark.playhead(file="cassettes/tickets.yaml")
        def test_another():
            requests.get("https://tickets.example.com/v2/parcels", timeout=60)
        """,
    )
    assert (ran := suite.pytest()).counts == {"passed": 1, "failed": 1}, ran.out
    assert "without file= in its mark: pytest test_old.py::test_another --record-mode=once" in ran
    assert "--record-mode=all" not in ran
    refused = suite.pytest("--record-mode=all")
    assert "was recorded by another program (vcr)" in refused


def test_options_of_pytest_recording_are_shared_with_it(suite: SuiteDirectory) -> None:
    # Only the options of the real plugin, whose requirements would otherwise be installed for all checks.
    suite.write(
        "pytest_recording.py",
        """
        def pytest_addoption(parser):
            group = parser.getgroup("recording")
            group.addoption("--record-mode", action="store", default=None, choices=("once", "new_episodes", "none", "all", "rewrite"))
            group.addoption("--block-network", action="store_true", default=None)
            group.addoption("--allowed-hosts", default=None)
            group.addoption("--disable-recording", action="store_true", default=False)
        """,
    )
    suite.write("test_one.py", "import pytest\n@pytest.mark.playhead\ndef test_it(): pass\n")
    where = os.pathsep.join([str(suite.directory), suite.environment()["PYTHONPATH"]])
    ran = suite.pytest("--record-mode=once", plugins=("pytest_recording",), PYTHONPATH=where)
    assert ran.counts == {"passed": 1}, ran.out
    assert "holds no call: none came through the proxy" in ran


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_behind_when_pytest_is_killed(suite: SuiteDirectory, number: signal.Signals) -> None:
    suite.write(
        "test_hangs.py",
        """
        import os, sys, time, pytest
        @pytest.mark.playhead
        def test_it():
            os.write(2, b"under way\\n")
            time.sleep(60)
        """,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "pytest_playhead", "-p", "no:cacheprovider", "-s", "--record-mode=once"],
        cwd=suite.directory,
        env=suite.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    with process, process.stderr:
        assert process.stderr.readline() == b"under way\n"
        beside = _children(process.pid)
        assert beside
        handles = [os.pidfd_open(pid) for pid in beside]
        process.send_signal(number)
        process.wait(60)
    for handle in handles:
        _wait_until_gone(handle)
    assert not (suite.directory / "recordings").exists()


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def _wait_until_gone(handle: int) -> None:
    with open(handle, closefd=True):
        ready, _, _ = select.select([handle], [], [], 60)
    assert ready, "the process beside the tests outlived them"


def test_a_test_of_thirty_calls_takes_less_than_a_second_to_replay(suite: SuiteDirectory) -> None:
    suite.write(
        "test_long.py",
        ASKING
        + """
import openai, os, pytest, time, requests

def cpu_seconds():
    # CPU seconds of this process and the fixtures process: wall-clock time would include other processes.
    beside = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    assert beside
    ticks = [open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[11:13] for pid in beside]
    return time.process_time() + sum(int(one) for pair in ticks for one in pair) / os.sysconf("SC_CLK_TCK")

@pytest.mark.playhead
def test_it():
    def ask_twice(turn, client, session):
        for event in client.chat.completions.create(**ASK, user=str(turn), stream=True):
            pass
        session.get(f"https://tickets.example.com/v2/tickets?n={turn}", timeout=60)

    # The first calls import more.
    ask_twice("first", openai.OpenAI(), requests.Session())
    for half in range(2):
        client, session = openai.OpenAI(), requests.Session()
        began = cpu_seconds()
        for turn in range(8):
            ask_twice(f"{half}-{turn}", client, session)
        print(f"TOOK {cpu_seconds() - began:.3f} s")
""",
    )
    assert suite.pytest("--record-mode=once").counts == {"passed": 1}
    suite.upstream_requests.clear()
    # Not as a fork: its Playhead must be a child of pytest to be measured.
    ran = suite.pytest("-s", forked=False, has_child=True)
    assert ran.counts == {"passed": 1}, ran.out
    assert not suite.upstream_requests
    # Sixteen calls: the better of two halves.
    assert min(float(took) for took in re.findall(r"TOOK ([\d.]+) s", ran.out)) * 30 / 16 < 1, ran.out


def test_secrets_are_not_written(suite: SuiteDirectory) -> None:
    suite.write(
        "test_secret.py",
        """
        import pytest, requests
        @pytest.mark.playhead
        def test_it():
            key = {"authorization": "Bearer sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"}
            assert requests.get("https://tickets.example.com/v2/tickets", headers=key, timeout=60).ok
        """,
    )
    record_then_replay(suite, passed=1)
    written = (suite.directory / "recordings/test_secret/test_it.jsonl").read_text()
    assert "sk-proj" not in written
    assert "PLAYHEAD_" in written
    assert json.loads(written.splitlines()[0])["run"]["name"] == "test_secret.py::test_it"


def test_packages_of_the_suite_that_are_called_like_playhead_s_own_are_no_trouble(suite: SuiteDirectory) -> None:
    suite.write("store/__init__.py", "HERS = True\n")
    suite.write("test_one.py", "import pytest, store\n@pytest.mark.playhead\ndef test_it():\n    assert store.HERS\n")
    where = os.pathsep.join([str(suite.directory), suite.environment()["PYTHONPATH"]])
    ran = suite.pytest("--record-mode=once", PYTHONPATH=where)
    assert ran.counts == {"passed": 1}, ran.out


def test_tests_that_share_a_file_add_to_it_and_no_advice_takes_from_another(suite: SuiteDirectory) -> None:
    shared = suite.write(
        "test_shared.py",
        """
        import pytest, requests
        pytestmark = pytest.mark.playhead(file="recordings/shared.jsonl", allow_unused=True)

        @pytest.mark.parametrize("n", [1, 2])
        def test_it(n):
            assert requests.get(f"https://tickets.example.com/v2/{n}", timeout=60).json()["path"] == f"/v2/{n}"
        """,
    )
    ran = None
    for mode in ("once", "all", "rewrite"):
        assert (ran := suite.pytest(f"--record-mode={mode}")).counts == {"passed": 2}, ran.out
        assert len(suite.recording("recordings/shared.jsonl")) == 2
    assert ran
    assert "holds 1 call, recorded just now in place of 2: any other test that uses it must be" in ran
    assert (ran := suite.pytest()).counts == {"passed": 2}, ran.out
    assert len(suite.upstream_requests) == 6
    shared.write_text(shared.read_text().replace("[1, 2]", "[1, 3]"))
    assert (ran := suite.pytest("-k", "test_it[3]")).counts == {"failed": 1, "deselected": 1}, ran.out
    advised = "pytest 'test_shared.py::test_it[3]' --record-mode=new_episodes"
    assert f"  to fix it: record only what is new: {advised}" in ran
    assert "or: record recordings/shared.jsonl again, with every test that uses it in one run: --record-mode=all" in ran
    suite.pytest(*shlex.split(advised)[1:])
    assert (ran := suite.pytest()).counts == {"passed": 2}, ran.out


def test_what_reads_only_the_failure_itself_sees_the_explanation(suite: SuiteDirectory) -> None:
    """JUnit XML, and with it the reports of CI services, have no sections of a report's own."""
    file = suite.write(
        "test_prompt.py",
        """
        import pytest, requests

        QUERY = "refund"

        @pytest.mark.playhead
        def test_found():
            assert requests.get("https://tickets.example.com/v2/tickets", params={"query": QUERY}).json()["path"]
        """,
    )
    assert suite.pytest("--record-mode=once").counts == {"passed": 1}
    file.write_text(file.read_text().replace("refund", "parcel"))
    for workers, plugins in (((), ()), (("-n", "1"), ("xdist",))):
        ran = suite.pytest("--junitxml=report.xml", *workers, plugins=plugins)
        assert ran.counts == {"failed": 1}, ran.out
        failure = ElementTree.parse(suite.directory / "report.xml").find(".//failure")
        assert failure is not None
        assert failure.text is not None
        for text in (failure.text, ran.out):
            assert text.count("1 missed, 1 unused") == 1
            assert "+ 'parcel'" in text
            assert "pytest test_prompt.py::test_found --record-mode=all" in text


def test_test_cases_of_unittest(suite: SuiteDirectory) -> None:
    suite.write(
        "test_case.py",
        """
        import unittest
        import pytest, requests

        @pytest.mark.playhead
        class TestTickets(unittest.TestCase):
            def setUp(self):
                requests.get("https://tickets.example.com/v2/before", timeout=60)

            def tearDown(self):
                requests.get("https://tickets.example.com/v2/after", timeout=60)

            def test_it(self):
                self.assertEqual(requests.get("https://tickets.example.com/v2/tickets", timeout=60).status_code, 200)
        """,
    )
    record_then_replay(suite, passed=1)
    assert len(suite.recording("recordings/test_case/TestTickets.test_it.jsonl")) == 3


def test_a_proxy_that_dies_fails_every_test_after_it_and_says_so(suite: SuiteDirectory) -> None:
    suite.write(
        "test_dies.py",
        """
        import os, signal, pytest
        from pathlib import Path

        def beside():
            return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()]

        @pytest.mark.playhead
        def test_first():
            for pid in beside():
                os.kill(pid, signal.SIGKILL)

        @pytest.mark.playhead
        def test_second(): pass
        def test_third(): pass
        """,
    )
    ran = suite.pytest("--record-mode=once", forked=False, has_child=True)
    assert ran.code == pytest.ExitCode.TESTS_FAILED
    assert "the process that answers the tests ended with exit code -9" in ran
    assert ran.counts == {"failed": 1, "error": 2}
