"""Effects of tests: the time, random numbers, variables and files that a test gets are those of its recording."""

import pytest

from tests.clients.suite_directory import SuiteDirectory

AGENT = """
import datetime, os, random, subprocess, sys, threading, time as clock, uuid
from concurrent import futures
from concurrent.futures import as_completed
from pathlib import Path
from time import time
import pytest, requests

def ask(text):
    asked = {"model": "example-large", "messages": [{"role": "user", "content": text}]}
    answer = requests.post("https://api.openai.com/v1/chat/completions", json=asked, timeout=10)
    answer.raise_for_status()

@pytest.fixture
def case():
    return uuid.uuid4()

@pytest.mark.playhead(effects=True)
def test_the_agent(case, tmp_path):
    own = tmp_path / "own.txt"
    own.write_text(os.environ["ROUND"])
    policy = (Path(__file__).parent / "policy.txt").read_text()
    ask(f"{case} at {datetime.datetime.now()}, {time()} {clock.monotonic_ns()}: {random.random()} {policy}")
    child = "import time, uuid; print(time.time(), uuid.uuid4())"
    ask(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
    ask(subprocess.check_output(["sh", "-c", "echo $$"], text=True))
    with futures.ThreadPoolExecutor(8) as pool:
        numbers = {pool.submit(threading.Event().wait, os.getrandom(1)[0] / 9000): n for n in range(8)}
        ask(f"as they came: {[numbers[one] for one in as_completed(numbers)]}")
    print("ANSWERED", own.read_text(), datetime.date.today().year, clock.strftime("%Z"))
"""

BESIDE = """
import asyncio, concurrent.futures, random, time, uuid

BEFORE = time.time, uuid.uuid4, random.random, random.Random, open, asyncio.wait, concurrent.futures.wait

def test_nothing_is_hooked_between_tests():
    assert (time.time, uuid.uuid4, random.random, random.Random, open, asyncio.wait, concurrent.futures.wait) == BEFORE
    assert type(time.time).__name__ == "builtin_function_or_method"
"""

FILE = "recordings/test_agent/test_the_agent.jsonl"


@pytest.fixture
def agent_suite(suite: SuiteDirectory) -> SuiteDirectory:
    suite.write("test_agent.py", AGENT)
    suite.write("test_beside.py", BESIDE)
    suite.write("policy.txt", "within 30 days")
    return suite


def test_a_test_gets_the_recorded_effects_and_a_miss_fails_it_with_its_line(agent_suite: SuiteDirectory) -> None:
    ran = agent_suite.pytest("--record-mode=once", "-s", ROUND="first", TZ="Asia/Tokyo")
    assert ran.counts == {"passed": 2}, ran.out
    assert "ANSWERED first" in ran
    agent_suite.write("policy.txt", "never")
    requests = list(agent_suite.upstream_requests)
    for mode in ("none", "new_episodes"):
        ran = agent_suite.pytest(f"--record-mode={mode}", "-s", "-p", "no:randomly", ROUND="second", TZ="Europe/Paris")
        assert ran.counts == {"passed": 2}, ran.out
        # The variable is as it was recorded; a file that the test makes is not looked at; the time zone is the recorded one.
        assert "ANSWERED first" in ran
        assert " JST\n" in ran
    assert agent_suite.upstream_requests == requests

    agent_suite.write("test_agent.py", AGENT + "    print(os.environ.get('ZONE'))\n    assert uuid.uuid4()\n")
    ran = agent_suite.pytest(ROUND="third", TZ="Europe/Paris")
    assert ran.counts == {"passed": 1, "failed": 1}, ran.out
    line = len(AGENT.splitlines()) + 1
    assert f'os.environ {{"name": "ZONE"}} at test_agent.py:{line}, in main: the nearest recorded one is at' in ran
    assert f"uuid.uuid4 at test_agent.py:{line + 1}, in main: the recording has 1 here" in ran
    assert "to fix it: record the test again: pytest test_agent.py::test_the_agent --record-mode=all" in ran

    assert agent_suite.pytest("--record-mode=new_episodes", ROUND="third", ZONE="z").counts == {"passed": 2}
    ran = agent_suite.pytest("-s", ROUND="fourth")
    assert ran.counts == {"passed": 2}, ran.out
    assert "\nz\n" in ran
    assert agent_suite.upstream_requests == requests


def test_a_recording_without_effects_does_not_answer_a_test_with_effects(agent_suite: SuiteDirectory) -> None:
    agent_suite.write(
        "test_agent.py", "import pytest, time\n\n@pytest.mark.playhead\ndef test_the_agent(): time.time()\n"
    )
    assert agent_suite.pytest("--record-mode=once").counts == {"passed": 2}
    agent_suite.write("pytest.ini", "[pytest]\nplayhead_effects = true\n")
    ran = agent_suite.pytest()
    assert ran.counts == {"passed": 1, "error": 1}, ran.out
    assert f"the recording {FILE} has no effects; record the test again: pytest test_agent.py::test_the_agent" in ran
    assert agent_suite.pytest("--record-mode=new_episodes").counts == {"passed": 2}
    assert agent_suite.pytest().counts == {"passed": 2}
