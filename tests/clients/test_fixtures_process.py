"""The fixtures process, used like a plugin does, and the parts of the plugin that need no suite."""

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_playhead.guard import NetworkBlocked, NetworkGuard
from pytest_playhead.recording_path import file_name

from calls.model import Body, Exchange, Request, Response
from calls.project_runs import RUN_ID
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.fixtures.answerer import SuiteAnswerer
from proxy.fixtures.case import BeginTest
from proxy.fixtures.messages import RecordingPlace, replay_message
from proxy.fixtures.write_recording import RecordingWriter, new_run, run_id
from store.active_profiles import load_profiles
from store.bundle.bundle import load_bundle
from tests.clients.suite_directory import PLAYHEAD

type Say = Callable[[bytes], dict[str, Any]]


@contextmanager
def conversation(data: Path) -> Iterator[tuple[Say, subprocess.Popen[bytes]]]:
    """The running process, which must end cleanly when its input ends."""
    process = subprocess.Popen(
        [PLAYHEAD, "fixtures", "--data", str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    stdin, stdout = process.stdin, process.stdout

    def say(line: bytes) -> dict[str, Any]:
        stdin.write(line + b"\n")
        stdin.flush()
        heard: dict[str, Any] = json.loads(stdout.readline())
        return heard

    with process:
        ready = json.loads(stdout.readline())["ready"]
        assert ready["version"] == 5
        assert ready["environment"]["HTTPS_PROXY"].startswith("http://pytest:x@127.0.0.1:")
        yield say, process
        stdin.close()
        assert process.wait(20) == 0


def test_an_input_that_no_plugin_writes_to_is_refused_in_one_sentence(tmp_path: Path) -> None:
    command = [PLAYHEAD, "fixtures", "--data", str(tmp_path / "data")]
    (tmp_path / "lines").write_bytes(b"{}\n")
    for file in (Path("/dev/null"), tmp_path / "lines"):
        with file.open("rb") as stdin:
            ran = subprocess.run(command, stdin=stdin, capture_output=True, timeout=60, check=False)
        assert ran.returncode == 125
        assert ran.stderr.startswith(b"playhead: standard input is neither a pipe nor a terminal")
        assert ran.stderr.count(b"\n") == 1
        assert ran.stdout == b""


def test_what_it_does_not_understand_it_says_so_and_goes_on(data: Path) -> None:
    with conversation(data) as (say, process):
        assert "malformed" in say(b"nonsense")["failed"]
        assert "unknown field `shout`" in say(b'{"shout": {}}')["failed"]
        assert "unknown message from the pytest plugin" in say(b"{}")["failed"]
        assert "no test was begun" in say(b'{"end": {"passed": true}}')["failed"]
        assert "there is no recording" in say(b'{"begin": {"name": "t.py::a", "file": "nowhere.jsonl"}}')["failed"]
        # Ctrl-C goes to all processes of a terminal: the suite ends this one itself, after it has reported its test's end.
        process.send_signal(signal.SIGINT)
        assert say(b'{"between": {"barred": "nobody may"}}') == {"done": {}}


def test_a_recording_that_was_altered_is_refused_by_its_line(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    with conversation(data) as (say, _):
        assert say(begin_message(file, "once")) == {"done": {"how": "record"}}
        assert say(b'{"end": {"passed": true}}')["done"]["right"]
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b"t.py::a", b"t.py::b"))
        assert f"{file}: line 1 of the bundle is damaged" in say(begin_message(file, "once"))["failed"]
        for n, (content, wrong) in enumerate(damaged_recordings(whole)):
            other = tmp_path / f"{n}.jsonl"
            other.write_bytes(content)
            failure = say(begin_message(other, "new_episodes"))["failed"]
            assert failure.startswith(f"{other}: {wrong}")
            assert failure.endswith("; record the test again: pytest t.py::a --record-mode=all")
            assert say(begin_message(other, "all")) == {"done": {"how": "record"}}
            assert say(b'{"end": {"passed": true}}')["done"]["right"]
            assert load_bundle(other).run["name"] == "t.py::a"


def begin_message(file: Path, mode: str) -> bytes:
    """The message that begins a test."""
    return json.dumps({"begin": {"name": "t.py::a", "file": str(file), "mode": mode}}).encode()


def damaged_recordings(whole: bytes) -> Iterator[tuple[bytes, str]]:
    """Recordings damaged by Git, an editor or a full disk, and the messages about them."""
    first, rest = whole.split(b"\n", 1)
    conflict = "a Git conflict marker, because a merge of the file is not finished (check out one side of it)"
    not_written = "of the bundle is damaged"
    yield b"<<<<<<< HEAD\n" + whole + b"=======\n" + whole + b">>>>>>> b\n", f"line 1 {not_written}: it is {conflict}"
    yield (
        first + b"\n<<<<<<< HEAD\n" + rest + b"=======\n" + rest + b">>>>>>> b\n",
        f"line 2 {not_written}: it is {conflict}",
    )
    yield b"<<<<<<< HEAD\n{}\n=======\n[]\n>>>>>>> b\n", f"its first line is {conflict}"
    yield b"\xef\xbb\xbf" + whole, f"line 1 {not_written}: it begins with a byte order mark"
    yield whole[:-1], f"line 2 {not_written}: the line is incomplete"
    yield rest, "the file is not a Playhead bundle"
    yield b"", "it is empty; record"
    yield b"\0" * 50, "it holds no recording: it is neither a bundle nor what another program writes"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    yield pointer, "it is a Git LFS pointer in place of the file: fetch the file with `git lfs pull`"
    yield b"[1]\n", "it holds no recording: it is neither a bundle nor what another program writes"


def test_a_recording_that_another_session_holds_is_waited_for_and_then_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "made" / "a.jsonl"
    with conversation(data) as (say, _):
        assert say(begin_message(file, "once")) == {"done": {"how": "record"}}

        async def begin(wait: float) -> dict[str, Any]:
            monkeypatch.setattr("proxy.fixtures.answerer.LOCK_TIMEOUT", wait)
            other = SuiteAnswerer(
                writer=RecordingWriter(profiles=load_profiles(None), redactor=Redactor(key=bytes(32)))
            )
            try:
                return await other.begin_test(BeginTest(name="t.py::a", file=str(file), mode="once"))
            finally:
                other.close()

        with pytest.raises(Failure, match="another pytest session or xdist worker has been recording into"):
            asyncio.run(begin(0.1))
        with ThreadPoolExecutor() as threads:
            waiting = threads.submit(lambda: asyncio.run(begin(30)))
            assert say(b'{"end": {"passed": true}}')["done"]["right"]
            # The other session has recorded it meanwhile, so it is replayed now.
            assert waiting.result() == {"how": "replay"}


def test_of_a_test_that_does_not_pass_nothing_is_left(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "made" / "for" / "a.jsonl"
    with conversation(data) as (say, _):
        assert say(begin_message(file, "once")) == {"done": {"how": "record"}}
        assert say(b'{"end": {"passed": false}}')["done"]["right"]
        assert not (tmp_path / "made").exists()
        assert say(begin_message(file, "once")) == {"done": {"how": "record"}}
    assert not (tmp_path / "made").exists()


def test_a_broken_file_of_another_program_is_never_written_over(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "cassette.yaml"
    file.write_text("<<<<<<< HEAD\ninteractions: []\n=======\n>>>>>>> b\n")
    with conversation(data) as (say, _):
        assert "its first line is a Git conflict marker" in say(begin_message(file, "rewrite"))["failed"]
    assert file.exists()


def test_a_recording_that_cannot_be_removed_is_reported_and_ends_nothing(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl" / "b.jsonl"
    file.parent.write_text("no directory")
    with conversation(data) as (say, _):
        assert say(begin_message(file, "rewrite")) == {"failed": f"cannot use the recording {file}: Not a directory"}
        assert say(b'{"between": {}}') == {"done": {}}


def test_what_others_may_be_answered_from_is_not_the_first_to_be_dropped() -> None:
    report = {
        **dict.fromkeys(("served", "missed", "drifted"), 0),
        "recorded": 1,
        "unused": 1,
        "allow_unused": False,
        "misses": [],
        "unused_steps": [{"step": 1, "asked": "GET https://tickets.example.com/"}],
    }
    own, shared = (
        RecordingPlace(test="t.py::a", file="a.jsonl", is_writable=True, is_shared=shared) for shared in (False, True)
    )
    assert replay_message(report, own).index("to drop them: ") < replay_message(report, own).index(
        "if it may make fewer calls: "
    )
    assert replay_message(report, shared).index("if other tests ") < replay_message(report, shared).index(
        "or, to drop them: "
    )


SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


def test_a_recording_that_holds_a_secret_is_not_written_and_the_place_is_named(tmp_path: Path) -> None:
    profiles = load_profiles(None)
    press = RecordingWriter(profiles=profiles, redactor=Redactor(key=b"k" * 32, profiles=profiles))
    body = json.dumps({"note": SECRET}).encode()
    leaky = Exchange(
        id="01a2008f-0a97-7287-b39a-d47064529d2a",
        run="r",
        request=Request(method="GET", url="https://tickets.example.com/"),
        response=Response(
            status=200, headers=(("content-type", "application/json"),), body=Body(data=body, size=len(body))
        ),
        outcome="completed",
        started_at=1,
        first_byte_at=2,
        ended_at=3,
    )
    file = tmp_path / "recordings" / "a.jsonl"
    with pytest.raises(Failure, match=r"1/response/body/note \(a token or key of a known format\)") as refused:
        press.write_bundle(file, press.make_bundle(new_run("t.py::a", 1), [leaky]))
    assert SECRET not in str(refused.value)
    assert not file.parent.exists()
    press.write_bundle(file, press.make_bundle(new_run("t.py::a", 1), []))
    assert load_bundle(file).run["name"] == "t.py::a"


NODES = st.text(min_size=1, max_size=300)


@given(NODES)
def test_every_node_id_makes_a_file_s_name_and_a_run_s_id(node: str) -> None:
    name = file_name(node)
    assert name.isascii()
    assert not set(name) & set('/\\:*?"<>| \0')
    assert 0 < len(name) <= 120
    assert RUN_ID.fullmatch(run_id(node))


@given(NODES, NODES)
def test_no_two_make_the_same(one: str, other: str) -> None:
    one, other = f"test_it[{one}]", f"test_it[{other}]"
    assert (file_name(one) == file_name(other)) == (one == other)
    assert (run_id(one) == run_id(other)) == (one == other)


def test_names_that_differ_only_in_what_a_file_s_name_cannot_hold() -> None:
    assert file_name("TestA::test_b[c]") == "TestA.test_b[c]"
    assert len({file_name(f"test_it[a{between}b]") for between in ("::", ".", "/", "-", ":")}) == 5


@pytest.fixture
def guard() -> Iterator[NetworkGuard]:
    made = NetworkGuard()
    yield made
    made.remove()


def test_the_guard_leaves_sockets_as_they_were(guard: NetworkGuard) -> None:
    before = dict(vars(socket.socket)), socket.getaddrinfo
    guard.arm("so it is", (), is_early=True)
    assert socket.getaddrinfo is not before[1]
    guard.remove()
    assert (dict(vars(socket.socket)), socket.getaddrinfo) == before


@pytest.mark.parametrize("address", ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"])
def test_the_guard_refuses_what_leaves_the_machine(guard: NetworkGuard, address: str) -> None:
    guard.arm("so it is", ["other.example"], is_early=True)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as client, pytest.raises(NetworkBlocked, match="443 was refused: so it is"):
        client.connect((address, 443))
    assert len(guard.refusals) == 1
    guard.disarm()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", 1), timeout=5)


def test_the_guard_lets_this_machine_and_allowed_hosts_pass(
    guard: NetworkGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)
    guard.arm("so it is", ["*.allowed.example"], is_early=True)
    assert socket.getaddrinfo("api.allowed.example", 80) == found
    assert socket.getaddrinfo("localhost", 80) == found
    with pytest.raises(NetworkBlocked, match=r"elsewhere\.example:80"):
        socket.getaddrinfo("elsewhere.example", 80)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
    guard.remove()
