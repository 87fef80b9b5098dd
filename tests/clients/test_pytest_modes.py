"""The plugin's record modes, with pytest as its own process, real clients and a real upstream."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.clients.suite_directory import SuiteDirectory

AGENT = """
import pytest, requests

def agent(prompt="any refunds?"):
    asked = {"model": "example-large", "messages": [{"role": "user", "content": prompt}]}
    said = requests.post("https://api.openai.com/v1/chat/completions", json=asked, timeout=60).json()["choices"][0]
    found = requests.get("https://tickets.example.com/v2/tickets", params={"query": "refund"}, timeout=60).json()
    return said["message"], found["asked"]

@pytest.mark.playhead
def test_the_agent_looks_first():
    message, asked = agent()
    print("ASKED", asked)
    assert message["tool_calls"][0]["function"]["name"] == "search_tickets"
"""

FILE = "recordings/test_agent/test_the_agent_looks_first.jsonl"


@pytest.fixture(params=["mitmproxy", "lane"])
def engine(request: pytest.FixtureRequest) -> str:
    """Both wire engines, because each must handle modes that change from test to test."""
    return str(request.param)


@pytest.fixture
def agent_suite(suite: SuiteDirectory) -> SuiteDirectory:
    suite.write("test_agent.py", AGENT)
    return suite


MADE: list[bytes] = []
"""A recording made once, which is replayed from any directory, even if another key replaces secrets."""


@pytest.fixture
def recorded_suite(agent_suite: SuiteDirectory) -> SuiteDirectory:
    if MADE:
        agent_suite.write(FILE, MADE[0].decode())
        return agent_suite
    ran = agent_suite.pytest("--record-mode=once")
    assert ran.counts == {"passed": 1}, ran.out
    MADE.append((agent_suite.directory / FILE).read_bytes())
    agent_suite.upstream_requests.clear()
    return agent_suite


def test_a_test_is_recorded_once_and_answered_from_then_on(agent_suite: SuiteDirectory) -> None:
    ran = agent_suite.pytest("--record-mode=once")
    assert ran.counts == {"passed": 1}, ran.out
    assert f"{FILE} holds 2 calls, recorded just now" in ran
    assert [each["request"]["method"] for each in agent_suite.recording(FILE)] == ["POST", "GET"]
    assert len(agent_suite.upstream_requests) == 2
    again = agent_suite.pytest("--record-mode=once")
    assert again.counts == {"passed": 1}, again.out
    assert len(agent_suite.upstream_requests) == 2


def test_nothing_is_asked_by_default(recorded_suite: SuiteDirectory) -> None:
    recorded_suite.server.shutdown()
    recorded_suite.server.server_close()
    assert (ran := recorded_suite.pytest("-s")).counts == {"passed": 1}, ran.out
    assert "ASKED 2" in ran
    assert not recorded_suite.upstream_requests


OTHERS = """
import unittest, pytest

pytestmark = pytest.mark.playhead

@pytest.mark.skip
def test_not_here(): pass

@pytest.mark.xfail(run=False)
def test_not_yet(): pass

class TestOld(unittest.TestCase):
    @unittest.skip("not here")
    def test_it(self): pass

@pytest.mark.playhead(fiel="a.jsonl")
def test_mistyped(): pass
"""


def test_without_a_recording_a_test_fails_with_the_command_that_makes_it(agent_suite: SuiteDirectory) -> None:
    agent_suite.write("test_others.py", OTHERS)
    below = replace(agent_suite, directory=agent_suite.directory / "below")
    below.directory.mkdir()
    ran = below.pytest("--rootdir", "..", "..")
    assert ran.counts == {"error": 2, "skipped": 2, "xfailed": 1}, ran.out
    assert f"there is no recording {agent_suite.directory / FILE}" in ran
    agent = f"{agent_suite.directory / 'test_agent.py'}::test_the_agent_looks_first"
    assert f"record it: pytest {agent} --record-mode=once" in ran
    assert "its mark got an unexpected keyword argument 'fiel'; it is playhead(file, " in ran
    assert "Traceback" not in ran
    assert not agent_suite.upstream_requests


def test_a_miss_fails_the_test_and_says_what_differs(recorded_suite: SuiteDirectory) -> None:
    recorded_suite.write("test_agent.py", AGENT.replace("any refunds?", "any parcels?"))
    ran = recorded_suite.pytest()
    assert ran.counts == {"failed": 1}, ran.out
    assert "- playhead -" in ran
    assert "/body/messages/0/content" in ran
    assert "- 'any refunds?'" in ran
    assert "+ 'any parcels?'" in ran
    assert "--record-mode=new_episodes" in ran
    assert not recorded_suite.upstream_requests


def test_a_miss_that_the_test_swallows_fails_it_all_the_same(recorded_suite: SuiteDirectory) -> None:
    swallowed = AGENT.replace("any refunds?", "any parcels?").replace(
        "    message, asked = agent()", "    try:\n        agent()\n    except Exception:\n        return"
    )
    recorded_suite.write("test_agent.py", swallowed)
    ran = recorded_suite.pytest()
    assert ran.counts == {"failed": 1}, ran.out
    assert "the test passed, but Playhead failed it" in ran
    assert "/body/messages/0/content" in ran


def test_an_unused_recording_fails_the_test_unless_it_may_be(recorded_suite: SuiteDirectory) -> None:
    shorter = AGENT.replace("    found = requests", "    return said['message'], 0\n    found = requests")
    recorded_suite.write("test_agent.py", shorter)
    ran = recorded_suite.pytest()
    assert ran.counts == {"failed": 1}, ran.out
    assert "unused: 1 recorded call that the test did not make" in ran
    assert "step 2, GET https://tickets.example.com/v2/tickets?query=refund" in ran
    recorded_suite.write("test_agent.py", shorter.replace("mark.playhead", "mark.playhead(allow_unused=True)"))
    assert recorded_suite.pytest().counts == {"passed": 1}


def test_new_episodes_records_only_what_is_missing(recorded_suite: SuiteDirectory, engine: str) -> None:
    config = recorded_suite.directory / "playhead.toml"
    config.write_text(f'engine = "{engine}"\n{config.read_text()}')
    first = recorded_suite.recording(FILE)
    more = AGENT.replace(
        "    return said", '    agent("any parcels?") if prompt == "any refunds?" else None\n    return said'
    )
    recorded_suite.write("test_agent.py", more.replace('params={"query": "refund"}', 'params={"query": prompt}'))
    ran = recorded_suite.pytest("--record-mode=new_episodes")
    assert ran.counts == {"passed": 1}, ran.out
    assert "holds 3 new calls beside 1 that answered, without 1 call that the test did not make" in ran
    assert recorded_suite.recording(FILE)[0] == first[0]
    assert len(recorded_suite.upstream_requests) == 3
    assert (again := recorded_suite.pytest()).counts == {"passed": 1}, again.out
    assert len(recorded_suite.upstream_requests) == 3


def test_all_records_anew_and_keeps_the_old_one_where_the_test_fails(recorded_suite: SuiteDirectory) -> None:
    before = (recorded_suite.directory / FILE).read_bytes()
    recorded_suite.write("test_agent.py", AGENT.replace('== "search_tickets"', '== "delete_tickets"'))
    ran = recorded_suite.pytest("--record-mode=all")
    assert ran.counts == {"failed": 1}, ran.out
    assert (recorded_suite.directory / FILE).read_bytes() == before
    recorded_suite.write("test_agent.py", AGENT)
    assert recorded_suite.pytest("--record-mode=all").counts == {"passed": 1}
    assert (recorded_suite.directory / FILE).read_bytes() != before


def test_a_failed_answer_never_takes_the_place_of_a_good_one(recorded_suite: SuiteDirectory) -> None:
    before = (recorded_suite.directory / FILE).read_bytes()
    failing = AGENT.replace("/v2/tickets", "/status/503").replace(".json()\n", '.json() and {"asked": 0}\n')
    recorded_suite.write("test_agent.py", failing)
    ran = recorded_suite.pytest("--record-mode=all")
    assert ran.counts == {"failed": 1}, ran.out
    assert "was answered with status 503" in ran
    assert "playhead(allow_failed=True)" in ran
    assert (recorded_suite.directory / FILE).read_bytes() == before
    recorded_suite.write("test_agent.py", failing.replace("mark.playhead", "mark.playhead(allow_failed=True)"))
    assert recorded_suite.pytest("--record-mode=all").counts == {"passed": 1}
    assert recorded_suite.recording(FILE)[1]["response"]["status"] == 503
    assert recorded_suite.pytest().counts == {"passed": 1}


SHARED = """
import os, time, pytest, requests

@pytest.mark.playhead(file="recordings/shared.jsonl", allow_unused=True)
def test_one_of_many():
    requests.get("https://tickets.example.com/v2/" + os.environ["ASKED"], timeout=60)
    time.sleep(1.5)
"""


@pytest.mark.parametrize("is_there", [False, True])
def test_sessions_at_once_lose_nothing_of_a_recording(suite: SuiteDirectory, is_there: bool) -> None:
    suite.write("test_shared.py", SHARED)
    if is_there:
        assert suite.pytest("--record-mode=once", ASKED="first").counts == {"passed": 1}
    with ThreadPoolExecutor() as threads:
        sessions = [
            threads.submit(suite.pytest, "--record-mode=new_episodes", ASKED=asked)
            for asked in ("one", "other", "third")
        ]
    for session in sessions:
        assert session.result().counts == {"passed": 1}, session.result().out
    asked = {each["request"]["url"].rpartition("/")[2] for each in suite.recording("recordings/shared.jsonl")}
    assert asked == {"one", "other", "third"} | ({"first"} if is_there else set())
    assert [path.name for path in (suite.directory / "recordings").iterdir()] == ["shared.jsonl"]


def test_rewrite_lets_the_old_one_go_first(recorded_suite: SuiteDirectory) -> None:
    recorded_suite.write("test_agent.py", AGENT.replace('== "search_tickets"', '== "delete_tickets"'))
    assert recorded_suite.pytest("--record-mode=rewrite").counts == {"failed": 1}
    assert not (recorded_suite.directory / FILE).exists()
    recorded_suite.write("test_agent.py", AGENT)
    assert recorded_suite.pytest("--record-mode=rewrite").counts == {"passed": 1}
    assert recorded_suite.pytest().counts == {"passed": 1}


def test_the_ini_file_may_say_the_mode(agent_suite: SuiteDirectory) -> None:
    agent_suite.write("pytest.ini", "[pytest]\nplayhead_record_mode = once\n")
    assert agent_suite.pytest().counts == {"passed": 1}
    assert (agent_suite.directory / FILE).exists()


def test_disabled_it_is_not_there(agent_suite: SuiteDirectory) -> None:
    agent_suite.write(
        "test_plain.py",
        'import os, pytest\n@pytest.mark.playhead\ndef test_it():\n    assert "HTTPS_PROXY" not in os.environ\n',
    )
    ran = agent_suite.pytest("--disable-recording", "test_plain.py")
    assert ran.counts == {"passed": 1}, ran.out
    assert not (agent_suite.directory / "recordings").exists()
