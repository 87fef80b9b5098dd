"""Compare the settings of a command with those of the running `up`.

Settings that a command does not set are those of the `up`. Only digests are compared, because some values are passwords.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from proxy.errors import Failure
from proxy.price_settings import own_prices
from proxy.settings import Settings

WORKER_SETTINGS: Final = (
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
        "keep_token_claims",
    ),
    *("connect_ports", "allow_private", "upstreams", "modes", "allowed_hosts", "tunnel"),
)
"""Settings that a command's own worker can have. The database and the profiles belong to the store server, which is shared."""


def setting_digests(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Return the digests of these settings, for other commands to compare with theirs."""
    return {name: _digest(_setting_value(settings, name)) for name in names}


def differing_settings(
    settings: Settings, digests: Mapping[str, str], names: Iterable[str] = WORKER_SETTINGS
) -> list[str]:
    """Return the names of those settings that are set here and differ from the digests."""
    return [
        name
        for name, digest in setting_digests(settings, names).items()
        if name in settings.given_names and digests.get(name) != digest
    ]


def require_same_database(settings: Settings, store_server: Mapping[str, Any]) -> None:
    """Raise Failure if the settings name another database than the one that this store server uses."""
    if differing_settings(settings, store_server.get("settings", {}), ["database_url"]):
        raise Failure(
            f"database_url names another database than the store server that runs on {settings.data} uses: leave it out,"
            " stop that store server, or use another data directory with --data"
        )


def require_same_prices(settings: Settings, store_server: Mapping[str, Any]) -> None:
    """Raise Failure if the settings name other prices than this store server calculates costs by."""
    # A server that this command starts itself has no notice.
    digests = store_server.get("settings", {})
    if "prices" in digests and differing_settings(settings, digests, ["prices"]):
        raise Failure(
            f"the store server that runs on {settings.data} calculates costs by other prices than those in {settings.prices}:"
            f" restart it with --prices {settings.prices}, or leave the setting out"
        )


def require_same_profiles(settings: Settings, store_server: Mapping[str, Any], *, own_worker: bool) -> None:
    """Raise Failure if recordings of this command would be keyed or redacted by other profiles than the user's.

    A command's own worker redacts by the command's profiles, and the workers of an `up` by that one's. With the latter, a
    command without profiles of its own means those of the `up`.
    """
    digest, own = store_server.get("settings", {}).get("profile"), _setting_value(settings, "profile")
    if digest in (None, _digest(own)) or not (own or own_worker):
        return
    if not own:
        raise Failure(
            f"the `playhead up` that runs on {settings.data} uses the profiles in {store_server['config']} and this command"
            f" uses none, so secrets that they declare might be stored: pass --config {store_server['config']}"
        )
    assert settings.config, "profiles come from this file"
    config = settings.config.absolute()
    raise Failure(
        f"the profiles in {config} differ from those of the `playhead up` that runs on {settings.data}, which keys and"
        f" redacts by its own: restart it with --config {config}, or use another data directory with --data"
    )


def _setting_value(settings: Settings, name: str) -> Any:
    match name:
        case "database_url":
            return settings.database_url and settings.database_url.get_secret_value()
        case "prices":
            return own_prices(settings.prices).digest if settings.prices else ""
        case "upstream_ca":
            return settings.upstream_ca and str(settings.upstream_ca.absolute())
        case "modes" | "allowed_hosts":
            # The two settings are ways to write one.
            return settings.host_modes
        case "profile":
            # Profiles are read from the file.
            return settings.profile if settings.config else ()
        case "tunnel":
            return settings.tunnel.hosts
        case _:
            return getattr(settings, name)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
