"""The configuration of a proxy worker, which `proxy.worker.process` reads from stdin."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from calls.project_runs import DEFAULT_PROJECT
from calls.redaction.settings import RedactionSettings
from store.log_format import LogFormat

type Mode = Literal["record", "replay", "auto", "passthrough"]
type EngineName = Literal["mitmproxy", "lane"]


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration, sent as one JSON line. Sizes are in bytes, times in nanoseconds since the Unix epoch."""

    name: str
    """The name of the worker's spool and log."""

    data: str
    """The data directory."""

    started: int
    """When the command or `up` that starts the worker began. Names the runs of clients that name none."""

    mode: Mode
    engine: EngineName
    listen: str = "127.0.0.1"
    log: str | None = None
    """The file for stderr; None if the process was started with it."""

    log_format: LogFormat = "text"
    port: int = 0
    reuse_port: bool = False
    reverse: str | None = None
    token: str | None = None
    """A recording token that clients may send in place of the one in the data directory."""

    project: str = DEFAULT_PROJECT
    """The project of clients whose token names none, and of the recordings that are replayed."""

    api: str | None = None
    """The URL of the store server's REST API, from which the worker fetches recordings."""

    page: str | None = None
    """The URL of the store server's web page, as a browser on this machine reaches it; None where no such page has the reports
    of this worker's replays."""

    api_token: str | None = None
    """The API token; None: the one in the data directory."""

    run_versions: str | None = None
    """The file in which the store server of this `up` notes which runs have changed, if it alone writes to the database, and which
    replays and forks were created."""

    versions_socket: str | None = None
    """Where the store server of this `up` says which runs have changed, if others may write to the database, too."""

    preload_secret: str | None = None
    """What the worker shows the store server of this `up` to load recordings ahead."""

    shared_runs: bool = False
    durability: Literal["process", "fsync"] = "process"
    on_record_failure: Literal["gap", "refuse"] = "gap"
    body_limit: int
    spool_limit: int
    upstreams: Mapping[str, str] = {}
    modes: Mapping[str, Mode] = {}
    tunnel: tuple[str, ...] = ()
    upstream_proxy: str | None = None
    upstream_ca: str | None = None
    connect_ports: tuple[int, ...] = (80, 443)
    allow_private: bool = False
    profiles_toml: str | None = None
    redaction: RedactionSettings = RedactionSettings()
    spooled: bool = True
    """Whether the worker has a spool. One that only replays records nothing."""

    spool: str | None = None
    """A directory of its own for the spool, which no store server reads; None: one in the data directory."""

    replay: tuple[str, ...] = ()
    """The runs and files that the worker answers from."""

    replay_options: Mapping[str, Any] = {}
    """The options of a single replay or fork (`replay.requested_options`)."""

    own_addresses: tuple[tuple[str, int], ...] = ()
    """Addresses of Playhead's own API, which clients cannot reach through the worker."""

    control: str | None = None
    """The path of the control socket, on which launchers pass the sockets of captured commands."""

    transparent: int | None = None
    """The port on which redirected connections arrive (`up --transparent`)."""
