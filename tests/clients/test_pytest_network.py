"""No request of a test leaves the machine unless that is allowed, and refusals say why."""

import pytest

from tests.clients.suite_directory import SuiteDirectory

pytestmark = pytest.mark.slow

# Names that do not resolve, and an address without a host (RFC 5737): without the guard, these tests would hang or fail
# differently.
PAST_THE_PROXY = """
import pytest, httpx

def ask():
    return httpx.Client(trust_env=False, timeout=5).get("https://api.openai.com/v1/models")

@pytest.mark.playhead(allow_unused=True)
def test_it():
    {body}
"""


def record_suite(suite: SuiteDirectory, name: str, content: str) -> None:
    """A suite with a recording for each of its tests, made while no client bypasses the proxy."""
    suite.write(name, content)
    ran = suite.pytest("--record-mode=once", name)
    assert ran.code == 0, ran.out
    suite.upstream_requests.clear()


def test_a_client_that_goes_past_the_proxy_is_refused_with_the_likely_reasons(suite: SuiteDirectory) -> None:
    record_suite(suite, "test_past.py", PAST_THE_PROXY.format(body="pass"))
    suite.write("test_past.py", PAST_THE_PROXY.format(body="ask()"))
    ran = suite.pytest()
    assert ran.counts == {"failed": 1}, ran.out
    assert "NetworkBlocked: a connection to api.openai.com:443 was refused" in ran
    assert "does not obey HTTPS_PROXY" in ran
    assert "playhead = true" in ran


def test_so_it_is_where_the_test_swallows_it(suite: SuiteDirectory) -> None:
    record_suite(suite, "test_past.py", PAST_THE_PROXY.format(body="pass"))
    body = "try:\n        ask()\n    except Exception:\n        pass"
    suite.write("test_past.py", PAST_THE_PROXY.format(body=body))
    ran = suite.pytest()
    assert ran.counts == {"failed": 1}, ran.out
    assert "the test passed, but Playhead failed it: a connection to api.openai.com:443 was refused" in ran


def test_addresses_are_refused_like_names_and_this_machine_is_not(suite: SuiteDirectory) -> None:
    content = """
    import asyncio, socket, threading
    import pytest

    @pytest.mark.playhead
    def test_here():
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname()).close()

    @pytest.mark.playhead
    def test_there():
        with socket.socket() as far, pytest.raises(RuntimeError, match="192.0.2.1:80 was refused"):
            far.connect_ex(("192.0.2.1", 80))
        pytest.skip("it was refused")

    @pytest.mark.playhead
    def test_there_from_a_loop():
        with pytest.raises(RuntimeError, match="192.0.2.1:80 was refused"):
            asyncio.run(asyncio.wait_for(asyncio.open_connection("192.0.2.1", 80), 5))
        pytest.skip("it was refused")
    """
    suite.write("test_sockets.py", content)
    recorded_nothing(suite, "test_sockets", ["test_here", "test_there", "test_there_from_a_loop"])
    ran = suite.pytest()
    assert ran.counts == {"passed": 1, "skipped": 2}, ran.out


def recorded_nothing(suite: SuiteDirectory, module: str, tests: list[str]) -> None:
    """Recordings of tests that send no requests."""
    suite.write(
        f"quiet/{module}.py",
        "import pytest\n" + "".join(f"@pytest.mark.playhead\ndef {one}(): pass\n" for one in tests),
    )
    assert suite.pytest("--record-mode=all", f"quiet/{module}.py").code == 0
    (suite.directory / "recordings" / module).mkdir(parents=True)
    for one in tests:
        made = suite.directory / "quiet" / "recordings" / module / f"{one}.jsonl"
        made.replace(suite.directory / "recordings" / module / f"{one}.jsonl")
    (suite.directory / "quiet" / f"{module}.py").unlink()


UNMARKED = """
import os, requests

def test_somebody_is_asked():
    answer = requests.get("https://tickets.example.com/v2/tickets", timeout=60)
    assert answer.status_code == 200, answer.text
"""

MARKED = """
import pytest
@pytest.mark.playhead
def test_marked(): pass
"""


def test_an_unmarked_test_is_left_alone(suite: SuiteDirectory) -> None:
    suite.write("test_a_marked.py", MARKED)
    suite.write("test_unmarked.py", UNMARKED)
    ran = suite.pytest("--record-mode=once")
    assert ran.counts == {"passed": 2}, ran.out
    assert len(suite.upstream_requests) == 1
    assert [path.name for path in suite.directory.rglob("*.jsonl")] == ["test_marked.jsonl"]


def test_block_network_is_for_unmarked_tests_too(suite: SuiteDirectory) -> None:
    suite.write("test_unmarked.py", UNMARKED)
    ran = suite.pytest("--block-network")
    assert ran.counts == {"failed": 1}, ran.out
    assert "https://tickets.example.com/v2/tickets was refused: --block-network is set" in ran
    assert not suite.upstream_requests


@pytest.mark.parametrize("allowed", ["tickets.example.com", "other.example,*.example.com"])
def test_allowed_hosts_open_it_by_name(suite: SuiteDirectory, allowed: str) -> None:
    suite.write("test_unmarked.py", UNMARKED)
    assert (ran := suite.pytest("--block-network", f"--allowed-hosts={allowed}")).counts == {"passed": 1}, ran.out
    assert len(suite.upstream_requests) == 1


def test_an_allowed_host_of_a_marked_test_is_asked_and_not_recorded(suite: SuiteDirectory) -> None:
    content = UNMARKED.replace(
        "def test", 'import pytest\n@pytest.mark.playhead(allowed_hosts=["tickets.*"])\ndef test'
    )
    record_suite(suite, "test_allowed.py", content)
    ran = suite.pytest()
    assert ran.counts == {"passed": 1}, ran.out
    assert len(suite.upstream_requests) == 1
    assert suite.recording("recordings/test_allowed/test_somebody_is_asked.jsonl") == []


def test_a_fixture_of_a_wider_scope_may_not_ask_for_one_of_its_tests(suite: SuiteDirectory) -> None:
    content = """
    import pytest, requests

    @pytest.fixture(scope="module")
    def tickets():
        answer = requests.get("https://tickets.example.com/v2/tickets", timeout=60)
        assert answer.status_code == 200, answer.text

    @pytest.mark.playhead
    def test_it(tickets): pass
    """
    suite.write("test_wide.py", content)
    ran = suite.pytest("--record-mode=once")
    assert ran.counts == {"error": 1}, ran.out
    assert ran.out.count("\nrefused:\n  GET https://tickets.example.com/v2/tickets: it was sent while no test") == 1
    suite.write("test_wide.py", content.replace("    assert answer.status_code == 200, answer.text\n", ""))
    for mode in ("once", "new_episodes"):
        ran = suite.pytest(f"--record-mode={mode}")
        assert ran.counts == {"failed": 1}, ran.out
        assert "refused:\n  GET https://tickets.example.com/v2/tickets: it was sent while no test was running" in ran
    assert not suite.upstream_requests


CLEANING = """
import pytest, requests

def post(path):
    return requests.post(f"https://tickets.example.com{path}", json={}, timeout=60)

@pytest.fixture
def ticket():
    yield post("/v2/tickets")
    post("/v2/tickets/delete")

@pytest.mark.playhead
def test_it(ticket):
    assert ticket.status_code == 201
"""


def test_a_fixture_that_cleans_up_is_part_of_its_test(suite: SuiteDirectory) -> None:
    record_suite(suite, "test_clean.py", CLEANING)
    assert len(suite.recording("recordings/test_clean/test_it.jsonl")) == 2
    assert (ran := suite.pytest()).counts == {"passed": 1}, ran.out
    assert not suite.upstream_requests
    suite.write("test_clean.py", CLEANING.replace('    post("/v2/tickets/delete")\n', ""))
    ran = suite.pytest()
    assert ran.counts == {"passed": 1, "error": 1}, ran.out
    assert "unused: 1 recorded call" in ran


def test_without_playhead_it_says_where_to_find_it(suite: SuiteDirectory) -> None:
    suite.write("test_marked.py", MARKED)
    ran = suite.pytest("--record-mode=once", PLAYHEAD_COMMAND="no-such-playhead")
    assert ran.code == pytest.ExitCode.USAGE_ERROR
    assert "cannot start `no-such-playhead fixtures`" in ran
    assert "--playhead-command or PLAYHEAD_COMMAND" in ran


def test_a_wrong_configuration_is_reported_in_its_own_words(suite: SuiteDirectory) -> None:
    suite.write("test_marked.py", MARKED)
    suite.write("playhead.toml", "nonsense = 1\n")
    ran = suite.pytest("--record-mode=once")
    assert ran.code == pytest.ExitCode.USAGE_ERROR
    assert "setting nonsense" in ran
