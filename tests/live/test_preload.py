"""Node's own clients go through a worker: by our preload alone on old Nodes, beside Node's own support on new ones."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.trust.client_environment import proxy_variables
from tests.live import npm, upstream
from tests.live.standin import StandinWorker, standing

ASK = Path(__file__).parent / "clients" / "ask.mjs"
BUILT_IN = ("fetch", "https", "https_own_agent", "https_no_agent")
PACKAGED = ("openai", "openai_streamed", "openai4_streamed", "undici", "axios")

type Node = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def port() -> Iterator[int]:
    with upstream.upstream() as server:
        yield server.server_port


@pytest.fixture
def worker(port: int, tmp_path: Path) -> Iterator[StandinWorker]:
    with standing(port, tmp_path) as running:
        yield running


@pytest.fixture(params=["node", pytest.param("node 24", marks=pytest.mark.slow)])
def program(request: pytest.FixtureRequest) -> str:
    return npm.node() if request.param == "node" else npm.node_24()


@pytest.fixture
def node(program: str, worker: StandinWorker, tmp_path: Path) -> Node:
    """Run Node under the environment that `playhead record` gives."""

    def run(*arguments: str, cwd: Path = tmp_path, **more: str) -> subprocess.CompletedProcess[str]:
        ours = proxy_variables(proxy=worker.proxy, ca=worker.ca, ca_bundle=worker.ca, base=os.environ)
        line = [program, *arguments]
        env = {**os.environ, **ours, **more}
        return subprocess.run(line, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_each_built_in_client_goes_through_and_names_its_run(node: Node, worker: StandinWorker) -> None:
    bases = [f"{scheme}://api.model.example" for scheme in ("https", "http")]
    done = node(str(ASK), ",".join(BUILT_IN), *bases)
    sent = upstream.response_body("/v1/chat/completions", streamed=True)
    got = [json.loads(line).get("sha256") for line in done.stdout.splitlines()]
    assert got == [hashlib.sha256(sent).hexdigest()] * len(BUILT_IN) * len(bases), done.stderr
    assert {head.split()[1].endswith(":443") for head in worker.heads} == {True, False}, "https and http"
    assert all("proxy-authorization: basic" in head.lower() for head in worker.heads)


@pytest.mark.slow
def test_each_package_gets_through_us_what_it_gets_without_us(node: Node, worker: StandinWorker, port: int) -> None:
    place = npm.packages()
    straight = node(str(ASK), ",".join(PACKAGED), f"http://127.0.0.1:{port}", cwd=place)
    assert not worker.heads, "loopback goes past the worker"
    through = node(str(ASK), ",".join(PACKAGED), "https://api.model.example", cwd=place)
    assert len(through.stdout.splitlines()) == len(PACKAGED), through.stderr
    assert through.stdout == straight.stdout
    assert worker.heads


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.mjs"
    path.write_text(text)
    return str(path)


def test_an_event_arrives_while_the_stream_is_open(node: Node, tmp_path: Path) -> None:
    text = """
        const response = await fetch("https://api.model.example/gated");
        let heard = "";
        for await (const piece of response.body) {
          if (!heard) await (await fetch("https://api.model.example/go")).text();
          heard += Buffer.from(piece);
        }
        console.log(JSON.stringify(heard));
    """
    done = node(script(tmp_path, text))
    assert json.loads(done.stdout) == "data: first\n\ndata: second\n\n", done.stderr


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_large_bodies_pass_whole_both_ways(node: Node, tmp_path: Path, scheme: str) -> None:
    size = 20_000_000
    text = f"""
        import {{ createHash }} from "node:crypto";
        import {{ request as https }} from "node:https";
        import {{ request as http }} from "node:http";
        const base = "{scheme}://api.model.example";
        const request = base.startsWith("https") ? https : http;
        const ask = (path, method, body) => new Promise((done, fail) => {{
          const asked = request(base + path, {{ method, headers: {{ "content-length": body.length }} }}, async (response) => {{
            const pieces = [];
            for await (const piece of response) pieces.push(piece);
            done(Buffer.concat(pieces));
          }});
          asked.once("error", fail);
          asked.end(body);
        }});
        const got = await ask("/bytes/{size}", "GET", Buffer.alloc(0));
        const digest = await ask("/digest", "POST", got);
        console.log(createHash("sha256").update(got).digest("hex"), String(digest));
    """
    expected = hashlib.sha256(upstream.pattern_bytes(size)).hexdigest()
    done = node(script(tmp_path, text))
    assert done.stdout.split() == [expected, expected], done.stderr


def test_a_kept_connection_is_used_again(node: Node, worker: StandinWorker, tmp_path: Path) -> None:
    text = """
        import https from "node:https";
        const agent = new https.Agent({ keepAlive: true, maxSockets: 1 });
        for (let turn = 0; turn < 5; turn++)
          await new Promise((done) => https.get("https://api.model.example/bytes/9", { agent }, (r) => r.resume().once("end", done)));
        agent.destroy();
    """
    done = node(script(tmp_path, text))
    assert (done.returncode, len(worker.heads)) == (0, 1), done.stderr


@pytest.mark.parametrize("module", ["https", "http"])
def test_a_kept_connection_does_not_keep_the_program_from_ending(node: Node, tmp_path: Path, module: str) -> None:
    text = f"""
        import {{ Agent, get }} from "node:{module}";
        const agent = new Agent({{ keepAlive: true }});
        get("{module}://api.model.example/bytes/9", {{ agent }}, (response) => response.resume());
    """
    assert node(script(tmp_path, text)).returncode == 0  # else it would wait for the other side for ever


def test_a_refusal_by_the_worker_is_an_error_that_says_so(node: Node, worker: StandinWorker, tmp_path: Path) -> None:
    worker.refuse = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
    text = """
        import https from "node:https";
        const said = [];
        await fetch("https://api.model.example/").catch((error) => said.push(String(error.cause)));
        const agent = new https.Agent();
        await new Promise((done) => https.get("https://api.model.example/", { agent }).once("error", (error) => done(said.push(error.message))));
        console.log(JSON.stringify(said));
    """
    done = node(script(tmp_path, text))
    said = json.loads(done.stdout or "[]")
    assert len(said) == 2, done.stderr
    assert "407" in said[1], "an agent of a program's own, where the words are ours"


def test_a_worker_that_is_gone_is_an_error_and_not_a_way_out(node: Node, tmp_path: Path) -> None:
    text = """
        import https from "node:https";
        const said = [];
        await fetch("https://api.model.example/").catch((error) => said.push(error.cause.code));
        await new Promise((done) => https.get("https://api.model.example/", { agent: new https.Agent() }).once("error", (error) => done(said.push(error.code))));
        console.log(JSON.stringify(said));
    """
    gone = "http://run:x@127.0.0.1:9"
    done = node(script(tmp_path, text), HTTPS_PROXY=gone, https_proxy=gone)
    assert json.loads(done.stdout or "[]") == ["ECONNREFUSED", "ECONNREFUSED"], done.stderr


def test_http2_goes_through(node: Node, tmp_path: Path, worker: StandinWorker) -> None:
    serve = """
        import http2 from "node:http2";
        const server = http2.createServer((request, response) => response.end("over " + request.httpVersion));
        server.listen(0, "127.0.0.1", () => console.log(server.address().port));
    """
    ask = """
        import { connect } from "node:http2";
        const session = connect("https://api.model.example");
        const stream = session.request({ ":path": "/" }).setEncoding("utf8");
        let heard = "";
        for await (const piece of stream) heard += piece;
        session.close();
        console.log(heard);
    """
    with subprocess.Popen([npm.node(), script(tmp_path, serve)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        worker.upstream = int(server.stdout.readline())
        worker.alpn = ["h2"]
        done = node(script(tmp_path, ask))
        server.terminate()
    assert done.stdout == "over 2.0\n", done.stderr
    assert len(worker.heads) == 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["wss", "ws"])
def test_the_ws_package_goes_through(node: Node, worker: StandinWorker, tmp_path: Path, scheme: str) -> None:
    place = npm.packages()
    serve = """
        const { WebSocketServer } = require("ws");
        const server = new WebSocketServer({ port: 0, host: "127.0.0.1" }, () => console.log(server.address().port));
        server.on("connection", (socket) => socket.on("message", (message) => socket.send(`heard ${message}`)));
    """
    ask = f"""
        const WebSocket = require("ws");
        const socket = new WebSocket("{scheme}://realtime.example/");
        socket.on("error", (error) => console.error(error));
        socket.on("open", () => socket.send("hello"));
        socket.on("message", (message) => {{ console.log(String(message)); socket.close(); }});
    """
    line = [npm.node(), "-e", serve]
    with subprocess.Popen(line, cwd=place, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        worker.upstream = int(server.stdout.readline())
        done = node("-e", ask, cwd=place)
        server.terminate()
    assert done.stdout == "heard hello\n", done.stderr
    assert len(worker.heads) == 1


def test_without_a_proxy_the_preload_changes_nothing(program: str, port: int) -> None:
    ours = proxy_variables(proxy="http://unused:1", ca="/none", ca_bundle="/none", base={})
    env = {"PATH": os.environ["PATH"], "NODE_OPTIONS": ours["NODE_OPTIONS"]}
    line = [program, str(ASK), "https_own_agent", f"http://127.0.0.1:{port}"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "sha256" in json.loads(done.stdout or "{}"), done.stderr
