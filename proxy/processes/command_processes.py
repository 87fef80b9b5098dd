"""Find the processes that a command needs, or start them for the time that it runs.

One store server serves a data directory, and commands share it. Each command starts workers of its own. A command stops
what it has started.
"""

import asyncio
import hashlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Self

import msgspec

from calls.project_runs import full_run_name
from proxy.anchor_settings import anchor_targets
from proxy.capture.control_path import MAX_PATH_BYTES, control_path
from proxy.errors import Failure
from proxy.export_settings import export_targets
from proxy.price_settings import own_prices
from proxy.processes import settings_match
from proxy.processes.child_process import ChildFailure, ChildProcess
from proxy.processes.early_worker import is_ci, is_within_command, take_early_worker
from proxy.processes.forked_process import RequestedFork, request_fork
from proxy.processes.log_files import remove_old_worker_logs
from proxy.processes.ports import require_loopback
from proxy.processes.process_context import LEAST_FILES, too_low_file_limit
from proxy.processes.store_client import Api
from proxy.processes.store_connection import Reservation, StoreConnection, reserve_store_server
from proxy.retention_settings import retention_policy
from proxy.settings import Settings
from proxy.terminal.text import printable
from proxy.terminal.waiting import show_waiting
from proxy.worker_config import WorkerConfig
from store.datadir import DataDir, DataDirError, open_data_dir
from store.lock import LockTaken
from store.server_config import StoreServerConfig

LOOPBACK = "127.0.0.1"

SUCCESSION_TIMEOUT = 15.0
"""Seconds within which a store server that is only kept ready begins to end."""

UNUSED_TIMEOUT = 3.0
"""Seconds within which a store server begins to end after the last command that used it."""

START_TIMEOUT = 60.0
"""Seconds that another command's store server may take to start or to stop."""


class CommandProcesses:
    """The processes that a command uses on one data directory. An async context manager."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started = time.time_ns()
        self.preload_secret = secrets.token_hex(16)
        """What our workers show our store server when they load recordings ahead. It is in no file."""

        self._workers: list[ChildProcess] = []
        self._store_servers: list[ChildProcess] = []
        self._is_lasting = False
        self._stays_ready = False
        """Whether our store server is kept ready for the next command when this one ends."""

        self._users_lock: int | None = None
        """The descriptor of our shared lock, which keeps another command's store server running."""
        self._found_notice: dict[str, Any] = {}
        """The notice of the running store server that was found."""
        self._starting: asyncio.Task[Api | Failure] | None = None
        """The start of a store server that a command goes on without."""

    def require_data_directory(self) -> None:
        """Raise Failure if nothing was ever recorded here, before anything is created. A database of the user's may have runs."""
        if self.settings.database_url is None and not (self.settings.data / "version").is_file():
            raise Failure(
                f"there is nothing here: {self.settings.data} is no data directory of Playhead; `playhead record -- COMMAND`"
                " makes one, or name another with --data DIR"
            )

    @cached_property
    def data(self) -> DataDir:
        """The data directory. It is created here: a command that reads files alone leaves nothing behind. Raises Failure."""
        try:
            return open_data_dir(self.settings.data)
        except DataDirError as error:
            raise Failure(str(error)) from error

    async def __aenter__(self) -> Self:
        require_loopback()
        return self

    async def __aexit__(self, *error: Any) -> None:
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stop())
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                # Finish stopping after a first Ctrl-C: the time that it takes is limited.
                await stopping
                raise

    async def _stop(self) -> None:
        try:
            # Workers first: the store server then drains what they left in their spools.
            await self.close_workers()
            await self._end_start()
            await self._stop_store_servers()
        except asyncio.CancelledError:
            # This is a second Ctrl-C.
            await asyncio.gather(*(child.kill() for child in (*self._workers, *self._store_servers)))
            raise

    async def _end_start(self) -> None:
        """End a store server that is still starting: what the workers left in their spools waits for the next one."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)

    async def _stop_store_servers(self) -> None:
        """Stop our store server, unless another command uses it: then it ends after the last of them."""
        self._end_use()
        if not self._store_servers:
            return
        if self._stays_ready:
            for store_server in self._store_servers:
                store_server.detach()
            return
        # The lock is held until the server has stopped, so that no command begins to use it meanwhile.
        exclusive_lock = self.data.users_lock.acquire_exclusive()
        try:
            if exclusive_lock is None and not self._is_lasting:
                for store_server in self._store_servers:
                    store_server.detach()
                return
            self.data.withdraw("store")
            await asyncio.gather(*(store_server.stop() for store_server in self._store_servers))
        finally:
            if exclusive_lock is not None:
                os.close(exclusive_lock)

    async def close_workers(self) -> list[int]:
        """Stop our workers, and return the exit statuses of those that ended by themselves. All that they acknowledged is in their spools."""
        statuses = await asyncio.gather(*(worker.stop() for worker in self._workers))
        ends = [status for worker, status in zip(self._workers, statuses, strict=True) if not worker.is_killed]
        for worker in self._workers:
            worker.remove_empty_log()
        self._workers.clear()
        return ends

    @property
    def token(self) -> str | None:
        """The configured recording token, if any."""
        return self.settings.token.get_secret_value() if self.settings.token else None

    def claim_run(self, run: str) -> str:
        """Claim a run for the command that is about to start, and return the run's token."""
        return self.read_secret(lambda data: data.run_tokens().claim(self._full_run_name(run)))

    def run_token(self, run: str) -> str:
        """Return the run's token, whether or not the run is claimed."""
        return self.read_secret(lambda data: data.run_tokens().token(self._full_run_name(run)))

    def project_token(self) -> str:
        """Return the token that records into the project, into any run of it that no command has claimed."""
        return self.run_token("")

    def api_client(self, url: str) -> Api:
        """Return a client of this data directory's store server."""
        return Api(url, self.read_secret(DataDir.api_token), self.data.api_token_file, self.settings.project)

    def _full_run_name(self, run: str) -> str:
        return full_run_name(self.settings.project, run)

    def read_secret[T](self, read: Callable[[DataDir], T]) -> T:
        """Read a secret of the data directory. Raises Failure if other users can read it."""
        try:
            return read(self.data)
        except (DataDirError, OSError) as error:
            raise Failure(str(error)) from error

    def find_up(self, timeout: float = 0, *, must_start: bool = False) -> dict[str, Any] | None:
        """Return the notice of the running `up`, or None if none runs.

        Waits up to `timeout` seconds for an `up` that is starting; with `must_start` also for one that is yet to start.
        """
        end = time.monotonic() + timeout
        while True:
            # A killed `up` leaves its notice behind, but the kernel releases its lock.
            is_held = self.data.up_lock.is_held()
            note = self.data.read_notice("up") if is_held else None
            if note is not None or not (is_held or must_start) or time.monotonic() >= end:
                return note
            time.sleep(0.1)

    async def connect_store_server(self, port: int = 0, *, stays_ready: bool = False, may_create: bool = False) -> Api:
        """Return a client of the running store server, or start one on `port`. Call it again when that server has ended.

        `stays_ready`: keep a server that is started ready for the next command, if the settings allow it. `may_create`: make the
        data directory if there is none, for a command that stores something. Raises Failure.
        """
        if not may_create:
            self.require_data_directory()
        with show_waiting("starting the store server"):
            return await self._find_or_start_store_server(port, stays_ready=stays_ready)

    async def reach_store_server(
        self, port: int, *, stays_ready: bool, after: "asyncio.Task[Any] | None" = None
    ) -> StoreConnection:
        """Find the running store server, or begin to start one on `port`, which the caller has reserved.

        One with a database of the user's is waited for: whether that answers is known before the command runs. `after`: what is
        done before one is started that nobody waits for yet, so that it has the processor to itself.
        """
        _require_file_limit()
        _require_store_server()
        if self.settings.database_url is None and await self._find_running_store_server() is None:
            with ExitStack() as stack:
                reservation = stack.enter_context(reserve_store_server(self.data, LOOPBACK, port))
                if reservation is not None:
                    start = self._start_reserved(
                        port, reservation, stack.pop_all(), stays_ready=stays_ready, after=after
                    )
                    self._starting = asyncio.get_running_loop().create_task(start)
                    return StoreConnection(f"http://{LOOPBACK}:{port}", self._starting)
        api = await self.connect_store_server(port, stays_ready=stays_ready, may_create=True)
        return StoreConnection(api.url, api)

    async def _start_reserved(
        self,
        port: int,
        reservation: Reservation,
        reserved: ExitStack,
        *,
        stays_ready: bool,
        after: "asyncio.Task[Any] | None",
    ) -> Api | Failure:
        """Start a store server with the lock and the socket that are reserved for it. The Failure is for who needs it."""
        with reserved:
            if after is not None:
                await asyncio.wait([after])
            try:
                child = await self.start_store_server(port, LOOPBACK, stays_ready=stays_ready, reservation=reservation)
            except Failure as failure:
                return failure
        return self.api_client(f"http://{LOOPBACK}:{child.ready['port']}")

    async def _find_or_start_store_server(self, port: int, *, stays_ready: bool) -> Api:
        end = time.monotonic() + START_TIMEOUT
        while True:
            if running := await self._find_running_store_server():
                return running
            # Another command's store server may be starting or stopping, and there is only one at a time.
            if not self.data.store_lock.is_held():
                try:
                    store_server = await self.start_store_server(port, LOOPBACK, stays_ready=stays_ready)
                    return self.api_client(f"http://{LOOPBACK}:{store_server.ready['port']}")
                except ChildFailure as failure:
                    # Another command's was quicker. It may have ended again since.
                    if not failure.message.get("is_in_use"):
                        raise
            if time.monotonic() > end:
                raise Failure(
                    f"another store server uses {self.data.root} and does not answer: see {self.data.logs}/store.log"
                )
            await asyncio.sleep(0.1)

    async def _find_running_store_server(self) -> Api | None:
        # A killed store server leaves its notice behind, and another program may have taken its port.
        note = self.data.read_notice("store") if self.data.store_lock.is_held() else None
        if note is not None and note.get("kept_for") not in (None, self._server_digest()):
            # It was kept ready for commands with other settings.
            await self._await_end_of_ready_server(SUCCESSION_TIMEOUT)
            note = self.data.read_notice("store") if self.data.store_lock.is_held() else None
        if note is None or not self._mark_in_use():
            return None
        api = self.api_client(note["api"])
        if await asyncio.to_thread(api.is_healthy):
            settings_match.require_same_database(self.settings, note)
            self._found_notice = note
            return api
        api.close()
        if "kept_for" in note:
            # It does not answer here, as one in the network of a captive command that has ended. Nobody else will use it.
            self._end_use()
            await self._await_end_of_ready_server(SUCCESSION_TIMEOUT)
        return None

    async def _await_end_of_ready_server(self, seconds: float) -> None:
        """Have a store server end that is only kept ready. One that another command uses goes on.

        One that is ending already is given as long as it takes: nobody can use it any more.
        """
        began = time.monotonic()
        times_used, is_ending = 0, False
        with ExitStack() as locks:
            # Of several commands that wait, one holds the lock.
            with suppress(LockTaken):
                locks.enter_context(self.data.successor_lock.hold())
            while self.data.store_lock.is_held() and times_used < 2:
                if time.monotonic() - began > (START_TIMEOUT if is_ending else seconds):
                    break
                await asyncio.sleep(0.05)
                times_used = times_used + 1 if self._is_store_server_used() else 0
                is_ending = self._is_store_server_ending()

    def _is_store_server_ending(self) -> bool:
        """Whether the running store server, or the command that stops it, lets nobody use it any more."""
        shared = self.data.users_lock.acquire_shared()
        if shared is not None:
            os.close(shared)
        return shared is None

    def _is_store_server_used(self) -> bool:
        """Whether a command uses the running store server. Once more to be sure: the server tries the lock, too."""
        if self._is_store_server_ending():
            return False
        exclusive = self.data.users_lock.acquire_exclusive()
        if exclusive is not None:
            os.close(exclusive)
        return exclusive is None

    def _mark_in_use(self) -> bool:
        """Keep the store server that was found running while we use it; False if it is about to end."""
        if self._users_lock is None:
            self._users_lock = self.data.users_lock.acquire_shared()
        return self._users_lock is not None

    def _end_use(self) -> None:
        """Let the store server that was found running end."""
        if self._users_lock is not None:
            os.close(self._users_lock)
            self._users_lock = None

    def require_same_profiles(self, *, own_worker: bool) -> None:
        """Raise Failure if the store server that was found uses other profiles or prices than this command."""
        settings_match.require_same_prices(self.settings, self._found_notice)
        settings_match.require_same_profiles(self.settings, self._found_notice, own_worker=own_worker)

    async def start_store_server(
        self,
        port: int,
        listen: str,
        *,
        is_lasting: bool = False,
        stays_ready: bool = False,
        reservation: Reservation | None = None,
    ) -> ChildProcess:
        """Start the store server, and announce it in the data directory. It is stopped when this context ends.

        `is_lasting`: it is the server of an `up`, with whose profiles other commands must agree.
        """
        _require_file_limit()
        _require_store_server()
        if is_lasting and self.data.store_lock.is_held():
            # It may also be one whose last command has just ended.
            is_ready_one = (self.data.read_notice("store") or {}).get("kept_for")
            await self._await_end_of_ready_server(SUCCESSION_TIMEOUT if is_ready_one else UNUSED_TIMEOUT)
        if not self.data.store_lock.is_held():
            self.data.withdraw("store")
        self._stays_ready = stays_ready and self._may_stay_ready()
        config = self._store_server_config(port, listen, is_lasting=is_lasting)
        passed: tuple[int, ...] = ()
        if reservation is not None:
            config = msgspec.structs.replace(config, lock=reservation.lock, listener=reservation.listener)
            passed = reservation.lock, reservation.listener
        child = await ChildProcess.start(
            "proxy.processes.store_server", config, log=self.data.logs / "store.log", pass_fds=passed
        )
        self._store_servers.append(child)
        self._is_lasting = is_lasting
        digests = settings_match.setting_digests(
            self.settings, ("database_url", "prices", *(("profile",) if is_lasting else ()))
        )
        config_file = str(self.settings.config.absolute()) if self.settings.config else None
        api = f"http://{reachable_host(listen)}:{child.ready['port']}"
        ready_note = {"kept_for": self._server_digest()} if self._stays_ready else {}
        self.data.announce("store", {"api": api, "settings": digests, "config": config_file, **ready_note})
        return child

    def _may_stay_ready(self) -> bool:
        """Whether a store server with an embedded Postgres is kept ready."""
        return self._keeps_processes() and self.settings.database_url is None

    def _keeps_processes(self) -> bool:
        """Whether processes are kept ready for the next command. In CI nobody asks again, and files are copied."""
        return bool(self.settings.store_idle) and not is_ci(os.environ) and not is_within_command(os.environ)

    def _server_digest(self) -> str:
        """Return a digest of all that a store server of ours would be started with, and of the token that it would accept."""
        config = self._store_server_config(0, LOOPBACK, is_lasting=False)
        config = msgspec.structs.replace(config, started=0, idle_timeout=0.0)
        token = self.read_secret(DataDir.api_token)
        return hashlib.sha256(msgspec.json.encode([config, token])).hexdigest()

    def _store_server_config(self, port: int, listen: str, *, is_lasting: bool) -> StoreServerConfig:
        url = self.settings.database_url
        return StoreServerConfig(
            data=str(self.data.root),
            database_url=url.get_secret_value() if url else None,
            listen=listen,
            port=port,
            mode=self.settings.mode,
            profiles_toml=self.profiles_toml(),
            redaction=self.settings.redaction,
            # Making a bundle takes about ten times the size of its largest body.
            helper_memory=max(512 << 20, 12 * self.settings.body_limit),
            tokens=(own.get_secret_value(),) if (own := self.settings.api_token) else (),
            open_api=self.settings.open_api,
            shared_runs=self.settings.shared_runs,
            log_format=self.settings.log_format,
            exports=export_targets(self.settings.export),
            retention=retention_policy(
                self.settings.retention, self.settings.retention_failed, self.settings.retention_budget
            ),
            anchors=anchor_targets(self.settings.witness, self.settings.timestamp),
            own_prices=own_prices(self.settings.prices),
            fork_agent=self.settings.fork_agent,
            objects=self.settings.objects.target(self.data.keys),
            preload_secret=self.preload_secret if is_lasting else None,
            versions_socket=self.preload_settings().get("versions_socket")
            if is_lasting and self.settings.mode in ("replay", "auto")
            else None,
            started=self.started,
            # A user waits for a command, which should fail soon; an `up` goes on recording.
            waits=is_lasting,
            temporary=not is_lasting,
            idle_timeout=self.settings.store_idle if self._stays_ready else 0.0,
        )

    def preload_settings(self) -> dict[str, str]:
        """Return what the workers of an `up` that answer from recordings are told to load them ahead; nothing if a path is too long."""
        settings = {"run_versions": str(self.data.run_versions), "preload_secret": self.preload_secret}
        if self.settings.database_url is None:
            return settings
        path = self.data.versions_socket
        return settings | {"versions_socket": str(path)} if len(os.fsencode(path)) <= MAX_PATH_BYTES else {}

    def profiles_toml(self) -> str | None:
        """Return the text of the file with the user's profiles, so that errors can name a line; None without profiles."""
        return self.settings.config.read_text("utf-8") if self.settings.config and self.settings.profile else None

    async def start_own_worker(
        self, late_settings: Awaitable[dict[str, Any]] | None = None, **changes: Any
    ) -> ChildProcess:
        """Start a worker for a command whose user waits for it (`start_worker`)."""
        with show_waiting("starting the proxy worker") as change_line:
            keeps_processes = self._keeps_processes()
            return await self.start_worker(
                late_settings,
                may_fork=keeps_processes,
                may_start_early=not keeps_processes,
                report_progress=lambda progress: change_line(printable(progress)),
                **changes,
            )

    async def start_worker(
        self,
        late_settings: Awaitable[dict[str, Any]] | None = None,
        *,
        may_fork: bool = False,
        may_start_early: bool = False,
        report_progress: Callable[[str], None] | None = None,
        **changes: Any,
    ) -> ChildProcess:
        """Start a worker, with these changes to its default configuration.

        `late_settings`: more changes, which are awaited while the worker's process starts. `may_fork`: have it forked by a
        process that stays ready. `may_start_early`: take the one that was started before the settings were read, if there is one. `report_progress`: as `ChildProcess.start`.
        """
        if too_low_file_limit() is not None and asyncio.iscoroutine(late_settings):
            late_settings.close()
        _require_file_limit()
        config = msgspec.structs.replace(self.worker_config(), **changes)
        # A replay can do without the second engine: what the lane does not serve is refused there anyway.
        is_lane_enough = config.mode == "replay" and config.engine == "lane" and not config.upstream_proxy
        if not is_lane_enough and find_spec("mitmproxy") is None:
            if asyncio.iscoroutine(late_settings):
                late_settings.close()
            raise Failure(
                "this environment can only replay, since it has one of the two wire engines: install playhead[proxy] into it"
            )
        modes = config.modes
        # A worker that only records has nothing to answer from, so it records hosts in mode replay or auto like others.
        if config.mode in ("record", "passthrough"):
            modes = {host: mode for host, mode in modes.items() if mode not in ("replay", "auto")}
        control = config.control or str(control_path(self.data.root, config.name))
        config = msgspec.structs.replace(config, modes=modes, control=control)
        remove_old_worker_logs(self.data.logs)
        log = self.data.logs / f"{config.name}.log"
        early = take_early_worker() if may_start_early else None
        if early is not None:
            config = msgspec.structs.replace(config, log=str(log))
        complete_config = config if late_settings is None else _apply_late_settings(config, late_settings)
        child = await ChildProcess.start(
            "proxy.worker.process",
            complete_config,
            log=log,
            request_fork=early.request if early is not None else self._request_fork if may_fork else None,
            report_progress=report_progress,
        )
        self._workers.append(child)
        return child

    def _request_fork(self, log: int) -> RequestedFork | None:
        return request_fork(self.data, log, self.settings.store_idle)

    def worker_config(self) -> WorkerConfig:
        """Return the configuration of a command's worker, which listens on loopback at a free port."""
        s = self.settings
        return WorkerConfig(
            name=f"worker-{secrets.token_hex(4)}",
            data=str(self.data.root),
            started=self.started,
            mode=s.mode,
            engine=s.engine,
            reverse=s.reverse,
            token=self.token,
            project=s.project,
            api_token=own.get_secret_value() if (own := s.api_token) else None,
            shared_runs=s.shared_runs,
            durability=s.durability,
            log_format=s.log_format,
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
            redaction=s.redaction,
            replay=tuple(s.replay),
        )


def _require_file_limit() -> None:
    """Raise Failure if a process that is started here could not open its files. Commands that start none do with few."""
    if (limit := too_low_file_limit()) is not None:
        raise Failure(
            f"a process may open only {limit} files here, and Playhead's need {LEAST_FILES}: raise the limit with: ulimit -n 1024"
        )


def _require_store_server() -> None:
    """Raise Failure if what a store server needs is not installed."""
    if find_spec("sqlalchemy") is None:
        raise Failure(
            "this environment has no store server, only what replays files: install playhead[store,proxy,embedded] into it,"
            " or name a file with a recording"
        )


async def _apply_late_settings(config: WorkerConfig, late_settings: Awaitable[dict[str, Any]]) -> WorkerConfig:
    return msgspec.structs.replace(config, **await late_settings)


def reachable_host(listen: str) -> str:
    """Return the host, for a URL, by which this machine reaches a listening address."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(listen, f"[{listen}]" if ":" in listen else listen)  # noqa: S104 - compared, not bound
