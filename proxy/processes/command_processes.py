"""Find the processes that a command needs, or start them for as long as it lasts.

One store server serves a data directory, whoever started it; workers are as many as there are commands. What a command starts,
it stops.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, Self

import msgspec

from proxy.capture.control_path import control_path
from proxy.errors import Failure
from proxy.processes import settings_match as agreement
from proxy.processes.child_process import Child
from proxy.processes.ports import loopback
from proxy.processes.store_client import Api
from proxy.settings import Settings
from proxy.worker_config import WorkerConfig
from store.datadir import DataDir, DataDirError, opened
from store.server_config import StoreServerConfig

LOOPBACK = "127.0.0.1"

START_WITHIN = 60.0
"""Seconds: how long another command's store server may take to start or to stop."""


class CommandProcesses:
    """An async context manager around one data directory."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        try:
            self.data: DataDir = opened(settings.data)
        except DataDirError as error:
            raise Failure(str(error)) from error
        self.started = time.time_ns()
        self._workers: list[Child] = []
        self._store_servers: list[Child] = []
        self._lasting = False
        self._use: int | None = None
        """Our part in the lock of those who use another command's store server."""
        self._other: dict[str, Any] = {}
        """What the store server that we have found running says about itself."""

    async def __aenter__(self) -> Self:
        loopback()
        return self

    async def __aexit__(self, *error: Any) -> None:
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stop())
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                # A Ctrl-C by now is heard when they have stopped: there is nothing to hurry, and it has its bounds.
                await stopping
                raise

    async def _stop(self) -> None:
        try:
            # Workers first: the store server then drains what they left in their spools.
            await self.close_workers()
            await self._stop_store_servers()
        except asyncio.CancelledError:
            # Ctrl-C once more.
            await asyncio.gather(*(child.killed() for child in (*self._workers, *self._store_servers)))
            raise

    async def _stop_store_servers(self) -> None:
        """Stop what we have started, unless another command uses it: then it ends after the last of them."""
        if self._use is not None:
            os.close(self._use)
            self._use = None
        if not self._store_servers:
            return
        # Held until it has stopped: nobody begins to use it meanwhile.
        alone = self.data.users_lock.alone()
        try:
            if alone is None and not self._lasting:
                for store_server in self._store_servers:
                    store_server.leave()
                return
            self.data.withdraw("store")
            await asyncio.gather(*(store_server.stop() for store_server in self._store_servers))
        finally:
            if alone is not None:
                os.close(alone)

    async def close_workers(self) -> list[int]:
        """Stop our workers; all that they acknowledged is in their spools. Their exit statuses: 0 where all was well."""
        ends = await asyncio.gather(*(worker.stop() for worker in self._workers))
        for worker in self._workers:
            worker.forget()
        self._workers.clear()
        return ends

    @property
    def token(self) -> str | None:
        """The recording token that was set, where one was."""
        return self.settings.token.get_secret_value() if self.settings.token else None

    def claimed(self, run: str) -> str:
        """Keep a run for the command that is about to be started; the token that this command is given."""
        return self.secret(lambda data: data.run_tokens().claim(run))

    def run_token(self, run: str) -> str:
        """What opens the run to a client, whether or not it is claimed."""
        return self.secret(lambda data: data.run_tokens().token(run))

    def api_client(self, url: str) -> Api:
        """A client of the store server of this data directory."""
        return Api(url, self.secret(DataDir.api_token), self.data.api_token_file)

    def secret[T](self, read: Callable[[DataDir], T]) -> T:
        """A secret of the data directory. Raises Failure where others may know it."""
        try:
            return read(self.data)
        except (DataDirError, OSError) as error:
            raise Failure(str(error)) from error

    def running_up(self, patience: float = 0, *, coming: bool = False) -> dict[str, Any] | None:
        """Where the running `up` listens, or None where there is none.

        One that has begun to start is waited for, `patience` seconds at most; with `coming` also one that has not yet.
        """
        end = time.monotonic() + patience
        while True:
            # A killed `up` leaves its note behind, and the kernel lets go of its lock.
            held = self.data.up_lock.held()
            note = self.data.notice("up") if held else None
            if note is not None or not (held or coming) or time.monotonic() >= end:
                return note
            time.sleep(0.1)

    async def api(self, port: int = 0) -> Api:
        """The running store server of this data directory, or one of our own on `port`. Call it again when another's has gone."""
        end = time.monotonic() + START_WITHIN
        while True:
            if running := await self._found():
                return running
            # There is one store server at a time, and another command's may be starting or stopping.
            if not self.data.store_lock.held():
                try:
                    store_server = await self.store_server(port, LOOPBACK)
                    return self.api_client(f"http://{LOOPBACK}:{store_server.ready['port']}")
                except Failure:
                    if not self.data.store_lock.held():
                        raise
            if time.monotonic() > end:
                raise Failure(
                    f"another store server holds {self.data.root} and does not answer; see {self.data.logs}/store.log"
                )
            await asyncio.sleep(0.1)

    async def _found(self) -> Api | None:
        # A killed store server leaves its note behind, and its port to whoever wants it.
        note = self.data.notice("store") if self.data.store_lock.held() else None
        if note is None or not self._used():
            return None
        api = self.api_client(note["api"])
        if await asyncio.to_thread(api.healthy):
            agreement.same_database(self.settings, note)
            self._other = note
            return api
        api.close()
        return None

    def _used(self) -> bool:
        """Keep the store server that was found from ending before we do; False where it is about to end."""
        if self._use is None:
            self._use = self.data.users_lock.shared()
        return self._use is not None

    def agreed(self, *, own_worker: bool) -> None:
        """Raise Failure where the store server we have found goes by other profiles than what is recorded here should."""
        agreement.same_profiles(self.settings, self._other, own_worker=own_worker)

    async def store_server(self, port: int, listen: str, *, lasting: bool = False) -> Child:
        """Start the store server; others find it by the data directory, and agree with it, on profiles where it is an `up`'s.
        It is stopped with the house."""
        if not self.data.store_lock.held():
            self.data.withdraw("store")
        child = await Child.start(
            "store", self._store_server_config(port, listen, lasting=lasting), log=self.data.logs / "store.log"
        )
        self._store_servers.append(child)
        self._lasting = lasting
        known = agreement.facts(self.settings, ("database_url", "profile") if lasting else ("database_url",))
        config = str(self.settings.config.absolute()) if self.settings.config else None
        api = f"http://{reachable(listen)}:{child.ready['port']}"
        self.data.announce("store", {"api": api, "settings": known, "config": config})
        return child

    def _store_server_config(self, port: int, listen: str, *, lasting: bool) -> StoreServerConfig:
        url = self.settings.database_url
        return StoreServerConfig(
            data=str(self.data.root),
            database_url=url.get_secret_value() if url else None,
            listen=listen,
            port=port,
            mode=self.settings.mode,
            profiles_toml=self.profiles_toml(),
            redact_personal_data=self.settings.redact_personal_data,
            redact_names=tuple(self.settings.redact_names),
            # A bundle of a body takes some ten times its size while it is made.
            helper_memory=max(512 << 20, 12 * self.settings.body_limit),
            tokens=(own.get_secret_value(),) if (own := self.settings.api_token) else (),
            open_api=self.settings.open_api,
            shared_runs=self.settings.shared_runs,
            started=self.started,
            # A person who waits for a command wants to hear of it; an `up` goes on recording.
            waits=lasting,
            temporary=not lasting,
            checks="replay.replay_options:unfit",
        )

    def profiles_toml(self) -> str | None:
        """The user's own profiles, as the text they stand in, so that an error can name its line."""
        return self.settings.config.read_text("utf-8") if self.settings.config and self.settings.profile else None

    async def worker(self, later: Awaitable[dict[str, Any]] | None = None, **differences: Any) -> Child:
        """Start one worker, on loopback and a free port where `differences` from its configuration say nothing else; `later`
        are such as are only known after a while, in which the worker comes up already."""
        if find_spec("mitmproxy") is None:
            if asyncio.iscoroutine(later):
                later.close()
            raise Failure("there is no wire engine here: install playhead[proxy] into this environment")
        config = msgspec.structs.replace(self.worker_config(), **differences)
        modes = config.modes
        # A worker that records has nothing to answer from: there such a host is recorded like any other.
        if config.mode in ("record", "passthrough"):
            modes = {host: mode for host, mode in modes.items() if mode not in ("replay", "auto")}
        control = config.control or str(control_path(self.data.root, config.name))
        config = msgspec.structs.replace(config, modes=modes, control=control)
        told = config if later is None else _with(config, later)
        child = await Child.start("proxy.worker.process", told, log=self.data.logs / f"{config.name}.log")
        self._workers.append(child)
        return child

    def worker_config(self) -> WorkerConfig:
        """The configuration of a worker for one command: on loopback, at a free port."""
        s = self.settings
        return WorkerConfig(
            name=f"worker-{secrets.token_hex(4)}",
            data=str(self.data.root),
            started=self.started,
            mode=s.mode,
            engine=s.engine,
            reverse=s.reverse,
            token=self.token,
            api_token=own.get_secret_value() if (own := s.api_token) else None,
            shared_runs=s.shared_runs,
            durability=s.durability,
            on_record_failure=s.on_record_failure,
            body_limit=s.body_limit,
            spool_limit=s.spool_limit,
            upstreams=s.upstreams,
            modes=s.host_modes,
            tunnel=tuple(s.tunnel.hosts),
            upstream_proxy=s.upstream_proxy,
            upstream_ca=str(s.upstream_ca) if s.upstream_ca else None,
            connect_ports=tuple(s.connect_ports),
            allow_private=s.allow_private,
            profiles_toml=self.profiles_toml(),
            redact_personal_data=s.redact_personal_data,
            redact_names=tuple(s.redact_names),
            replay=tuple(s.replay),
        )


async def _with(config: WorkerConfig, later: Awaitable[dict[str, Any]]) -> WorkerConfig:
    return msgspec.structs.replace(config, **await later)


def reachable(listen: str) -> str:
    """The host part of a URL that reaches a listening address from this machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen, f"[{listen}]" if ":" in listen else listen)  # noqa: S104 - compared, not bound
