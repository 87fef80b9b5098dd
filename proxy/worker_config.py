"""The configuration of a proxy worker: written by the process that starts it, read from stdin by `proxy.worker.process`."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from proxy.settings import EngineName, Mode


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One JSON line. Sizes are bytes, times nanoseconds since the Unix epoch."""

    name: str
    """Names its spool and its log."""

    data: str
    """The data directory."""

    started: int
    """When the command or `up` that started it began; names runs that have no name of their own."""

    mode: Mode
    engine: EngineName
    listen: str = "127.0.0.1"
    port: int = 0
    reuse_port: bool = False
    reverse: str | None = None
    token: str | None = None
    """The password that clients must send, beside the recording token of the data directory."""

    api: str | None = None
    """The store server's REST API, from which it fetches recordings."""

    api_token: str | None = None
    """None: the one of the data directory."""

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
    redact_personal_data: bool = False
    redact_names: tuple[str, ...] = ()
    spooled: bool = True
    """Whether it has a spool: one that only replays records nothing."""

    replay: tuple[str, ...] = ()
    """The runs and files that it answers from."""

    replay_options: Mapping[str, Any] = {}
    """The options of a single replay or fork (`replay.replay_options`)."""

    own_addresses: tuple[tuple[str, int], ...] = ()
    """Where our own API listens: never reached through the worker."""

    control: str | None = None
    """The path of the socket on which launchers hand over captured connections."""

    transparent: int | None = None
    """The port at which redirected connections arrive."""
