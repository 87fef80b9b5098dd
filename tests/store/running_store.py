"""The store server's insides put together for a test: spools, store server, Postgres, and REST on a real port."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import FastAPI
from starlette.routing import BaseRoute

from calls.derive import derive_call
from calls.model import Call, Exchange
from calls.redaction.call import Clean
from store.access.api_tokens import ApiTokens
from store.access.audit_log import AuditLog
from store.active_profiles import load_profiles
from store.api.app import create_app
from store.api.deps import Deps, EditCheck
from store.api.server import run_server
from store.database.connection import Database
from store.database.run_versions import RunVersions
from store.feed.signal import FeedSignal
from store.followers import Followers
from store.ingest.batch_writer import BatchWriter
from store.ingest.ingester import Ingester
from store.large.helper import Helper
from store.proof.sealing import Sealer
from store.proof.signing_keys import SigningKeys
from store.retention.rules import RetentionPolicy, shipped_rules
from store.retention.runner import RetentionRunner
from tests.support.postgres import STORE_SERVER

PROFILES = load_profiles(None)
EXAMPLE = Path(__file__).with_name("example.jsonl")
SIGNING_KEYS = SigningKeys(STORE_SERVER, (Ed25519PrivateKey.from_private_bytes(bytes(range(32))),))
"""The keys of the store server under test."""

RUN = "20261121-223011-4b1e"
"""The run in the example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningStore:
    """A running store server and a client of its API."""

    api: httpx2.AsyncClient
    store_server: Ingester
    spools: Path
    signal: FeedSignal
    followers: Followers


def make_ingester(spools: Path, database: Database, derived: Callable[[Exchange], Call] | None = None) -> Ingester:
    """A store server that is not running yet."""
    spools.mkdir(exist_ok=True)
    ingest = BatchWriter(database, profile=PROFILES.digest)
    return Ingester(spools, ingest, derived or partial(derive_call, profiles=PROFILES))


@asynccontextmanager
async def running(store_server: Ingester) -> AsyncIterator[Ingester]:
    """Let it run inside of the block."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(store_server.run())
        try:
            yield store_server
        finally:
            store_server.stop()
            await task


@asynccontextmanager
async def serving_api(
    store_server: Ingester,
    database: Database,
    *,
    tokens: Sequence[str] = (),
    mode: str = "record",
    unfit: EditCheck | None = None,
    fork_agent: str | None = None,
    helper: Helper | None = None,
    keys: Path | None = None,
    clean: Clean = str,
    api_tokens: ApiTokens | None = None,
    signal: FeedSignal | None = None,
    followers: Followers | None = None,
    checkpoints: Path | None = None,
    preload_secret: str | None = None,
    announcements: RunVersions | None = None,
    follows: bool = True,
) -> AsyncIterator[httpx2.AsyncClient]:
    """The REST interface on a free port of loopback, and a client of it. Without `follows`, nothing follows the record."""
    signal = signal or FeedSignal()
    followers = followers or Followers(database, signal, partial(derive_call, profiles=PROFILES))
    desk = Deps(
        store_server=store_server,
        database=database,
        signal=signal,
        followers=followers,
        profiles=PROFILES,
        clean=clean,
        mode=mode,
        edit_problem=unfit,
        fork_agent=fork_agent,
        helper=helper,
        key_directory=keys,
        audit=AuditLog(database, time.time_ns),
        sealer=Sealer(database, SIGNING_KEYS, checkpoints) if checkpoints else None,
        log_keys=SIGNING_KEYS.public if checkpoints else None,
        checkpoint_directory=checkpoints,
        preload_secret=preload_secret,
        announcements=announcements,
        retention=RetentionRunner(database, RetentionPolicy(rules=shipped_rules()), signal=signal),
    )
    full_tokens = {f"token {number}": token for number, token in enumerate(tokens, 1)}
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        app = share_routes(create_app(desk, full_tokens, None, api_tokens))
        following = _in_background(followers.run()) if follows else nullcontext()
        async with following, run_server(app, port):
            url = f"http://127.0.0.1:{port.getsockname()[1]}"
            async with httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=30) as client:
                yield client


_ROUTES: list[BaseRoute] = []


def share_routes(app: FastAPI) -> FastAPI:
    """Let the applications of all tests have the same routes.

    FastAPI examines the parameters of the routes when it first looks for one, which takes longer than most tests.
    """
    if _ROUTES:
        app.router.routes[:] = _ROUTES
    else:
        _ROUTES.extend(app.router.routes)
    return app


@asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run it until the block ends."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        try:
            yield
        finally:
            task.cancel()


@asynccontextmanager
async def open_store(
    spools: Path,
    database: Database,
    *,
    tokens: Sequence[str] = (),
    mode: str = "record",
    unfit: EditCheck | None = None,
    fork_agent: str | None = None,
    clean: Clean = str,
    api_tokens: ApiTokens | None = None,
    preload_secret: str | None = None,
    announcements: RunVersions | None = None,
    follows: bool = True,
) -> AsyncIterator[RunningStore]:
    """All of it, with `damaged` and `checkpoints` beside the spools, as in a data directory.

    A test of what neither sums nor searches takes half the time without those that follow the record.
    """
    signal = FeedSignal()
    followers = Followers(database, signal, partial(derive_call, profiles=PROFILES))
    async with (
        running(make_ingester(spools, database)) as store_server,
        serving_api(
            store_server,
            database,
            tokens=tokens,
            api_tokens=api_tokens,
            mode=mode,
            unfit=unfit,
            fork_agent=fork_agent,
            clean=clean,
            signal=signal,
            followers=followers,
            checkpoints=spools.parent / "checkpoints",
            preload_secret=preload_secret,
            announcements=announcements,
            follows=follows,
        ) as api,
    ):
        yield RunningStore(api=api, store_server=store_server, spools=spools, signal=signal, followers=followers)


async def import_bundle(running_store: RunningStore, content: bytes | None = None) -> dict[str, Any]:
    """Import a bundle, the example where none is given."""
    answer = await running_store.api.post("/v1/import", content=content or EXAMPLE.read_bytes())
    assert answer.status_code == 201, answer.text
    run: dict[str, Any] = answer.json()
    return run


def is_problem(answer: httpx2.Response, status: int, name: str | None = None) -> dict[str, Any]:
    """The answer is a problem of RFC 9457 whose parts agree."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert set(problem) >= {"type", "title", "detail", "instance"}
    assert name is None or problem["type"] == f"urn:playhead:problem:{name}"
    return problem
