"""An agent of each kind, many at once, on shared clients: each request's path says in which run it was made."""

import asyncio
import concurrent.futures
import multiprocessing
import os
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.pool import ThreadPool

import playhead

playhead.install()

import aiohttp  # noqa: E402 - also what is imported later is hooked
import httpx  # noqa: E402
import requests  # noqa: E402
import urllib3  # noqa: E402
import websockets.asyncio.client  # noqa: E402
import websockets.sync.client  # noqa: E402

HOST = "tickets.example.com"
SOCKETS = "sockets.example.com"
shared_requests = requests.Session()
shared_httpx = httpx.Client(timeout=60)
shared_urllib3 = urllib3.ProxyManager(playhead.proxy(), maxsize=2)
together = threading.Barrier(3)


def call(label: str | None) -> None:
    """One request by each synchronous client."""
    url = f"https://{HOST}/{label}"
    shared_requests.get(url, timeout=60)
    shared_httpx.get(url, timeout=60)
    shared_urllib3.request("GET", url)
    shared_requests.get(f"http://{HOST}/{label}", timeout=60)


def call_anew(label: str | None) -> None:
    """Requests of a child process, because a TLS connection cannot be shared."""
    urllib.request.urlopen(f"https://{HOST}/{label}", timeout=60).read()


def call_sdks(label: str) -> None:
    # Not above: a spawned process imports what stands there again.
    import anthropic
    import botocore.session
    import openai

    said = [{"role": "user", "content": label}]
    openai.OpenAI(base_url=f"https://{HOST}/{label}/openai").chat.completions.create(model="m", messages=said)  # type: ignore[arg-type]
    with anthropic.Anthropic(api_key="none", base_url=f"https://{HOST}/{label}") as client:
        client.messages.with_raw_response.create(model="m", max_tokens=1, messages=said)  # type: ignore[arg-type]
    session = botocore.session.get_session()
    session.set_credentials("a", "b")
    bedrock = session.create_client("bedrock-runtime", region_name="us-east-1", endpoint_url=f"https://{HOST}/{label}")
    bedrock.invoke_model(modelId="m", body=b"{}")


def in_threads() -> None:
    def ticket(number: int) -> None:
        with playhead.run(f"thread-{number}"):
            together.wait()
            call(f"thread-{number}")
            with playhead.run(f"nested-{number}"):
                call(f"nested-{number}")
            other = threading.Thread(target=call, args=(f"thread-{number}",))
            other.start()
            other.join()
            if number == 0:
                call_sdks("thread-0")
        together.wait()

    threads = [threading.Thread(target=ticket, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    call(None)


def in_executors() -> None:
    """Executors whose threads are started in one run and work in another."""
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        with playhead.run("executor-1"):
            pool = ThreadPool(2)
            waiting = [executor.submit(call, "executor-1") for _ in range(2)]
            pool.map(call, ["executor-1"])
        with playhead.run("executor-2"):
            waiting += [executor.submit(call, "executor-2") for _ in range(2)]
            pool.apply(call, ("executor-2",))
            bound = playhead.bind(call)
        waiting += [executor.submit(call, None), executor.submit(bound, "executor-2")]
        pool.map(call, [None])
        pool.terminate()
        for future in waiting:
            future.result()


async def in_tasks() -> None:
    async with aiohttp.ClientSession(trust_env=True) as shared_aiohttp, httpx.AsyncClient(timeout=60) as shared_async:

        async def ask(label: str | None) -> None:
            async with shared_aiohttp.get(f"https://{HOST}/{label}") as answer:
                await answer.read()
            async with shared_aiohttp.get(f"http://{HOST}/{label}") as answer:
                await answer.read()
            await shared_async.get(f"https://{HOST}/{label}")
            await asyncio.to_thread(call, label)
            await asyncio.get_running_loop().run_in_executor(None, call, label)

        async def agent(number: int) -> None:
            async with playhead.run(f"task-{number}"), asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(ask(f"task-{number}"))
                command = (sys.executable, "-c", CHILD, f"task-{number}")
                group.create_task((await asyncio.create_subprocess_exec(*command)).wait())

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(agent(number))
            group.create_task(ask(None))


class OnlyHttp2(ssl.SSLContext):
    """httpx names HTTP/1.1 first, and is given that where an upstream speaks both."""

    def set_alpn_protocols(self, _protocols: object) -> None:
        super().set_alpn_protocols(["h2"])


async def in_streams() -> None:
    """Requests over one HTTP/2 connection and one session, and over WebSockets of each client."""
    trust = OnlyHttp2(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_default_certs()
    shared_http2 = httpx.AsyncClient(timeout=60, http2=True, verify=trust)
    async with aiohttp.ClientSession(trust_env=True) as shared_aiohttp, shared_http2:

        async def ask(label: str | None) -> None:
            answers = await asyncio.gather(*(shared_http2.get(f"https://{HOST}/{label}") for _ in range(2)))
            assert {answer.http_version for answer in answers} == {"HTTP/2"}
            url = f"wss://{SOCKETS}/{label}/"
            async with shared_aiohttp.ws_connect(f"{url}aiohttp") as socket:
                await socket.send_str(str(label))
                assert await socket.receive_str() == str(label)
            async with websockets.asyncio.client.connect(f"{url}websockets") as connection:
                await connection.send(str(label))
                assert await connection.recv() == str(label)
            await asyncio.to_thread(talk, f"{url}blocking", str(label))

        async def agent(number: int) -> None:
            async with playhead.run(f"stream-{number}"), asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(ask(f"stream-{number}"))

        await ask(None)
        await asyncio.gather(agent(1), agent(2), ask(None))


def talk(url: str, text: str) -> None:
    with connect_again(url) as connection:
        connection.send(text)
        assert connection.recv() == text


def connect_again(url: str) -> websockets.sync.client.ClientConnection:
    """A connection of a client that reads and writes in two threads, which this Python's `ssl` may fail to bear.

    https://github.com/python/cpython/issues/134698: "internal error", or no answer, while session tickets are read.
    """
    for _ in range(5):
        with suppress(ssl.SSLError, TimeoutError):
            return websockets.sync.client.connect(url, open_timeout=20)
    raise AssertionError(f"no connection to {url} in five attempts")


CHILD = f"import sys, urllib.request; urllib.request.urlopen('https://{HOST}/' + sys.argv[1]).read()"


def in_generators() -> None:
    def steps(label: str) -> Iterator[None]:
        with playhead.run(label):
            for _ in range(2):
                call(label)
                yield

    for _ in zip(steps("generator-1"), steps("generator-2"), strict=True):
        pass
    call(None)

    @contextmanager
    def block(label: str) -> Iterator[None]:
        with playhead.run(label):
            yield

    def outer() -> Iterator[None]:
        with playhead.run("generator-3"):
            call("generator-3")
            yield
            with block("generator-4"):
                call("generator-4")
            call("generator-3")

    with closing(outer()) as running:  # type: ignore[type-var] # a generator
        next(running)
        with block("block-1"):
            next(running, None)
            call("block-1")
    call(None)


async def in_async_generators() -> None:
    async def steps(label: str) -> AsyncIterator[None]:
        with playhead.run(label):
            for _ in range(2):
                await asyncio.to_thread(call, label)
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.to_thread(call, label))
                yield

    one, other = steps("async-generator-1"), steps("async-generator-2")
    for _ in range(2):
        await anext(one)
        await anext(other)
    await one.aclose()  # type: ignore[attr-defined] # a generator
    await other.aclose()  # type: ignore[attr-defined] # likewise
    await asyncio.to_thread(call, None)


def in_processes() -> None:
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    with playhead.run("process-1"):
        subprocess.run([sys.executable, "-c", CHILD, "process-1"], check=True)
        subprocess.run([sys.executable, "-c", CHILD, "process-1"], check=True, env={**os.environ, "MORE": "1"})
        for context in (fork, spawn):
            process = context.Process(target=call_anew, args=("process-1",))
            process.start()
            process.join()
        executor = concurrent.futures.ProcessPoolExecutor(1, mp_context=fork)
        executor.submit(call_anew, "process-1").result()
    with playhead.run("process-2"):
        executor.submit(call_anew, "process-2").result()
    executor.submit(call_anew, None).result()
    executor.shutdown()


if __name__ == "__main__":
    in_threads()
    in_executors()
    asyncio.run(in_tasks())
    asyncio.run(in_streams())
    in_generators()
    asyncio.run(in_async_generators())
    in_processes()
    # A host that is reached without Playhead gets no run header.
    with playhead.run("direct"):
        requests.get(f"{sys.argv[1]}/direct", timeout=60)
        httpx.get(f"{sys.argv[1]}/direct", timeout=60)
