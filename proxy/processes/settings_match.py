"""Compare the settings of a command with those of the running `up` beside it.

What a command does not set, it leaves to those. Told to others are digests alone: among the values are passwords.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from proxy.errors import Failure
from proxy.settings import Settings

WORKERS: Final = (
    *(
        "engine",
        "reverse",
        "durability",
        "on_record_failure",
        "body_limit",
        "spool_limit",
        "upstream_proxy",
        "upstream_ca",
        "redact_personal_data",
        "redact_names",
    ),
    *("connect_ports", "allow_private", "upstreams", "modes", "allowed_hosts", "tunnel"),
)
"""What a worker of one's own can go by; the database and the profiles are the store server's, of which there is one."""


def facts(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """What these settings are, for others to compare with theirs."""
    return {name: _digest(_value(settings, name)) for name in names}


def others(settings: Settings, known: Mapping[str, str], names: Iterable[str] = WORKERS) -> list[str]:
    """Which of these are set here, and set otherwise."""
    return [
        name
        for name, digest in facts(settings, names).items()
        if name in settings.model_fields_set and known.get(name) != digest
    ]


def same_database(settings: Settings, store_server: Mapping[str, Any]) -> None:
    """Raise Failure where another database is named here than the one that this store server serves."""
    if others(settings, store_server.get("settings", {}), ["database_url"]):
        raise Failure(
            f"database_url names another database than the one that the store server which runs on {settings.data} serves; leave it"
            " out, stop that store server first, or give this command a directory of its own with --data"
        )


def same_profiles(settings: Settings, store_server: Mapping[str, Any], *, own_worker: bool) -> None:
    """Raise Failure where what is recorded here would be keyed and redacted by other profiles than it should be.

    A worker of one's own redacts by the profiles here; those of an `up` by that one's, which are what is meant where none are
    here.
    """
    known, own = store_server.get("settings", {}).get("profile"), _value(settings, "profile")
    if known in (None, _digest(own)) or not (own or own_worker):
        return
    if not own:
        raise Failure(
            f"the `playhead up` that runs on {settings.data} goes by profiles of its own, and this command by none: say"
            f" --config {store_server['config']}, so that the same is kept secret"
        )
    assert settings.config, "it holds the profiles"
    config = settings.config.absolute()
    raise Failure(
        f"the profiles in {config} are not those that the `playhead up` which runs on {settings.data} was started"
        f" with, and it keys and redacts by its own: start that again with --config {config}, or give this command a"
        " directory of its own with --data"
    )


def _value(settings: Settings, name: str) -> Any:
    match name:
        case "database_url":
            return settings.database_url and settings.database_url.get_secret_value()
        case "upstream_ca":
            return settings.upstream_ca and str(settings.upstream_ca.absolute())
        case "modes" | "allowed_hosts":
            # They are two ways to say one thing.
            return settings.host_modes
        case "profile":
            # They are read from the file.
            return settings.profile if settings.config else ()
        case "tunnel":
            return settings.tunnel.hosts
        case _:
            return getattr(settings, name)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
