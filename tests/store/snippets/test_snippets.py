"""Copied commands and code send exactly what was recorded, whatever it holds; they are executed here."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from calls.model import Body, Chunk, Exchange, Headers, Request, Response
from store.bundle.bundle import read_bundle
from store.foreign.contents import Interaction
from store.foreign.read import open_source
from store.snippets.snippet import FORMS, CallCopy, CopiedCall, NotCopyable, make_snippet
from tests.support.examples import many_examples

PLACEHOLDER = "PLAYHEAD_AQ2KJ5NFAMZ7XW4B3HTSVLDGYC6OEUPIR"
OTHER = "PLAYHEAD_DZZZZZZ4444444444444"

HOSTILE = (
    b"'; rm -rf ~ #",
    b"$(touch /tmp/playhead-snippet-was-run) `touch /tmp/playhead-snippet-was-run` $HOME ${PATH}",
    b"-d @/etc/passwd",
    b"@/etc/passwd",
    b"line\nEOF\nline\n\n",
    b"\"\"\" ''' {} {0} %s %d \\N{DASH} \\x41 \\\\",
    b"!! !$ ^a^b",
    b"\x00\x01\x7f\x1b[201~\x1b]0;x\x07",
    b"\r\nX: y\r\n",
    b"caf\xc3\xa9 \xe2\x80\xae bidi \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80",
    b"broken \xff\xfe \xc3",
    b'{"a": [1, 2.50, "$(id)", null, true], "b": {"c": "\\u2028"}}',
    b'{"a":1,"a":2}',
    b'{"a":"' + b"x" * 70_000 + b"'\"}",
)


@dataclass
class ReceivedRequest:
    """What the server got last."""

    method: str = ""
    target: str = ""
    headers: Headers = ()
    body: bytes = b""


@dataclass
class Target:
    url: str
    got: list[ReceivedRequest] = field(default_factory=list)

    def last(self) -> ReceivedRequest:
        """Return the only request since the last call."""
        (one,) = self.got
        self.got.clear()
        return one


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            found.got.append(ReceivedRequest(self.command, self.path, tuple(self.headers.items()), body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the output of the tests readable."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Target(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def make_exchange(
    url: str, body: bytes, *, headers: Headers = (), method: str = "POST", answer: bytes = b"{}"
) -> Exchange:
    return Exchange(
        id="01936f1d-8d5a-7d51-9ad4-1c57a5d1d7c3",
        run="night run",
        request=Request(
            method=method,
            url=url,
            headers=(*headers, *((("content-length", str(len(body))),) if body else ())),
            body=Body(data=body, size=len(body)),
        ),
        response=Response(status=200, headers=(("content-type", "application/json"),), body=Body(data=answer)),
        outcome="completed",
        started_at=1_795_262_400_000_000_000,
        first_byte_at=1,
        ended_at=2,
    )


def copy_call(exchange: Exchange, form: Any, provider: str = "openai") -> CallCopy:
    return make_snippet(
        CopiedCall(exchange=exchange, run="night run", step=3, provider=provider, streamed=False, profiles="sha256:0"),
        form,
    )


def run_shell(snippet: CallCopy, shell: str = "sh") -> None:
    """Execute the snippet with an empty environment, but for a place to find curl."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        **dict.fromkeys(snippet.variables, "s3cret '\"$x"),
    }
    command = snippet.text if snippet.text.endswith("\n") else f"{snippet.text}\n"
    done = subprocess.run(
        [shell], input=command.encode(), env=environment, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def run_python(snippet: CallCopy) -> None:
    environment = {"PATH": os.environ["PATH"], **dict.fromkeys(snippet.variables, "s3cret")}
    subprocess.run([sys.executable, "-c", snippet.text], env=environment, check=True, timeout=60)


def lowercase_headers(headers: Headers) -> Headers:
    return tuple((name.lower(), value) for name, value in headers)


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_shell_sends_hostile_bodies_byte_by_byte(target: Target, shell: str) -> None:
    for body in HOSTILE:
        run_shell(copy_call(make_exchange(f"{target.url}/v1/x?a=1&b=$(id)", body), "curl"), shell)
        got = target.last()
        assert (got.method, got.target, got.body) == ("POST", "/v1/x?a=1&b=$(id)", body)


bodies = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=100).map(str.encode),
    st.lists(st.sampled_from([*HOSTILE[:-1], b"\\", b"'", b"\n", b"%"]), max_size=5).map(b"".join),
)


@settings(max_examples=25)
@given(body=bodies)
@example(body=b"")
def test_a_shell_sends_any_body(target: Target, body: bytes) -> None:
    run_shell(copy_call(make_exchange(f"{target.url}/any", body), "curl"))
    assert target.last().body == body


def test_python_sends_hostile_bodies_byte_by_byte(target: Target) -> None:
    for body in (HOSTILE[5], HOSTILE[7], HOSTILE[9], HOSTILE[11]):
        run_python(copy_call(make_exchange(f"{target.url}/v1/x?a=1", body), "python"))
        got = target.last()
        assert (got.method, got.target, got.body) == ("POST", "/v1/x?a=1", body)


class StandIn:
    """Takes the place of httpx: reading its certificates takes fifty milliseconds."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        self.sent = {"method": method, "url": url, **options}
        return httpx.Response(200)


def execute(source: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    stand_in = StandIn()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "httpx", stand_in)
        patched.setattr("builtins.print", lambda *_: None)
        exec(compile(source, "snippet", "exec"), {})
    return stand_in.sent


@settings(max_examples=many_examples(150))
@given(
    body=bodies
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=30),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    ).map(lambda value: json.dumps([value], ensure_ascii=False).encode("utf-8", "surrogatepass"))
)
def test_python_sends_any_body(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patched:
        sent = execute(copy_call(make_exchange("https://api.example.com/", body), "python").text, patched)
    assert sent.get("content", b"") == body


def test_a_json_body_is_code_that_a_person_can_edit() -> None:
    body = b'{"model":"gpt-4o","messages":[{"role":"user","content":"' + b"hello " * 20 + b'"}]}'
    text = copy_call(make_exchange("https://api.openai.com/v1/chat/completions", body), "python").text
    assert "body = {\n    'model': 'gpt-4o',\n    'messages': [" in text


HEADERS: Headers = (
    ("Host", "api.openai.com"),
    ("User-Agent", "agent/1"),
    ("Content-Type", "application/json"),
    ("Authorization", f"Bearer {PLACEHOLDER}"),
    ("X-Tenant", OTHER),
    ("X-Latin", "caf\xe9 $(id)"),
    ("X-Empty", ""),
    ("X-Quote", 'it\'s "quoted" `id` \\ !'),
    ("Accept-Encoding", "gzip"),
    ("Connection", "keep-alive, X-Hop"),
    ("X-Hop", "1"),
    ("X-Playhead-Run", "r"),
)


@pytest.mark.parametrize("form", ["curl", "python"])
def test_headers_arrive_as_they_were_sent_with_secrets_from_the_environment(target: Target, form: str) -> None:
    made = copy_call(make_exchange(f"{target.url}/", b"{}", headers=HEADERS), form)
    run_shell(made) if form == "curl" else run_python(made)
    got = dict(lowercase_headers(target.last().headers))
    secret = "s3cret '\"$x" if form == "curl" else "s3cret"
    assert made.variables == ["OPENAI_API_KEY", "X_TENANT"]
    assert got["authorization"] == f"Bearer {secret}"
    assert got["x-tenant"] == secret
    assert got["x-latin"].encode("latin-1") == b"caf\xe9 $(id)"
    assert (got["x-empty"], got["x-quote"]) == ("", 'it\'s "quoted" `id` \\ !')
    assert got["user-agent"] == "agent/1"
    assert not got.keys() & {"x-hop", "x-playhead-run"}


def test_curl_adds_no_headers_of_its_own(target: Target) -> None:
    run_shell(copy_call(make_exchange(f"{target.url}/", b"x"), "curl"))
    assert {name for name, _ in lowercase_headers(target.last().headers)} == {"host", "content-length"}
    run_shell(copy_call(make_exchange(f"{target.url}/a[1-3]/../{{b,c}}?q=%00", b"", method="GET"), "curl"))
    assert target.last().target == "/a[1-3]/../{b,c}?q=%00"


SECRETS = make_exchange(
    f"https://generativelanguage.googleapis.com/v1beta/models/g:generateContent?key={PLACEHOLDER}",
    f'{{"token":"{OTHER}","again":"{PLACEHOLDER}","text":"x"}}'.encode(),
    headers=(
        ("X-Goog-Api-Key", PLACEHOLDER),
        ("Cookie", "a=plain; b=c"),
        ("Authorization", "Basic never-redacted"),
        ("Path", OTHER + "A"),
    ),
    answer=f'{{"key": "{OTHER}"}}'.encode(),
)


@pytest.mark.parametrize("form", FORMS)
def test_no_placeholder_and_no_credential_is_ever_copied(form: Any) -> None:
    made = copy_call(SECRETS, form, "gcp.gemini")
    assert "PLAYHEAD_" not in made.text
    assert "never-redacted" not in made.text
    assert "a=plain" not in made.text
    assert "GEMINI_API_KEY" in made.variables
    assert not {"PATH", "HOME", "COOKIE"} & set(made.variables)
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]*", name) for name in made.variables)


def test_a_secret_in_the_body_comes_from_the_environment(target: Target) -> None:
    body = f'{{"a":"{OTHER}","b":"it\'s","c":"{OTHER}"}}'.encode()
    run_shell(copy_call(make_exchange(f"{target.url}/", body), "curl"))
    assert target.last().body == b'{"a":"s3cret \'"$x","b":"it\'s","c":"s3cret \'"$x"}'
    run_shell(copy_call(make_exchange(f"{target.url}/", body + b"\0"), "curl"))
    assert target.last().body == b'{"a":"s3cret \'"$x","b":"it\'s","c":"s3cret \'"$x"}\0'
    run_python(copy_call(make_exchange(f"{target.url}/", body), "python"))
    assert target.last().body == b'{"a":"s3cret","b":"it\'s","c":"s3cret"}'


def test_one_step_is_a_bundle_with_names_in_place_of_secrets() -> None:
    body = SECRETS.request.body
    at = body.data.index(b"again")
    chunks = (Chunk(0, 0, at), Chunk(5, at, len(body.data) - at))
    exchange = replace(SECRETS, request=replace(SECRETS.request, body=replace(body, chunks=chunks)))
    bundle = read_bundle(BytesIO(copy_call(exchange, "jsonl", "gcp.gemini").text.encode()))
    (entry,) = bundle.entries
    sent = entry.exchange.request
    assert bundle.run["id"] == entry.exchange.run == "night-run-step-3"
    assert sent.body.data == b'{"token":"$SECRET_1","again":"$GEMINI_API_KEY","text":"x"}'
    first, second = sent.body.chunks
    assert (
        sent.body.data[first.offset :][: first.size] + sent.body.data[second.offset :][: second.size] == sent.body.data
    )
    assert sent.body.data[second.offset :].startswith(b"again")
    assert dict(lowercase_headers(sent.headers))["content-length"] == str(len(sent.body.data))


@pytest.mark.parametrize("form", ["har", "vcr"])
def test_one_step_is_read_back_from_other_formats(form: Any, tmp_path: Path) -> None:
    body = b'{"a":"</script>\\u0000"}'
    exchange = make_exchange("https://api.openai.com/v1/x", body, headers=HEADERS, answer=b"\xff\x00")
    made = copy_call(exchange, form)
    (tmp_path / made.file).write_text(made.text)
    (found,) = list(open_source(tmp_path / made.file).items)
    assert isinstance(found, Interaction)
    assert (found.request.body.data, found.response.body.data) == (body, b"\xff\x00")
    assert dict(lowercase_headers(found.request.headers))["authorization"] == "Bearer $OPENAI_API_KEY"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"url": "file:///etc/passwd"}, "URL"),
        ({"url": "https://a/\r\nx"}, "URL"),
        ({"method": "GET --output x"}, "method"),
        ({"body": Body(data=b"x", size=9, truncated=True)}, "not recorded completely"),
        ({"body": Body(data=b"x" * (2 << 20), size=2 << 20)}, "too large"),
        ({"headers": (("Upgrade", "websocket"),)}, "WebSocket"),
    ],
)
def test_what_no_client_can_send_is_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    exchange = make_exchange("https://api.example.com/", b"x")
    with pytest.raises(NotCopyable, match=why):
        copy_call(replace(exchange, request=replace(exchange.request, **change)), "curl")


def test_a_header_that_http_forbids_is_left_out_and_named() -> None:
    made = copy_call(
        make_exchange("https://a.example/", b"", headers=(("X-A", "b\r\nX-Evil: 1"), ("x y", "1"))), "curl"
    )
    assert "Evil" not in made.text
    assert any("'X-A'" in note for note in made.notes)


def test_the_test_for_pytest_is_python_with_one_test() -> None:
    made = copy_call(make_exchange("https://api.openai.com/v1/x", HOSTILE[5], headers=HEADERS), "pytest")
    assert made.file == "test_night_run_step_3.py"
    assert "def test_step_3_of_night_run():" in made.text
    compile(made.text, made.file, "exec")
    assert Path(made.file).name == made.file
