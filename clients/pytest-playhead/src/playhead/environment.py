"""Handle the proxy variables: those that lead this process to Playhead, and those of a program that belongs to a run.

The variables of this process never name a run, because a client that reads them in one run may be used in another.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from playhead.rest import Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WS_PROXY", "WSS_PROXY")

_LOOPBACK = "localhost,127.0.0.1,::1"

_lock = threading.Lock()
_holders = 0
_previous: dict[str, str | None] = {}
_is_permanent = False


def is_set(variables: Mapping[str, str]) -> bool:
    """Whether these variables lead to Playhead."""
    return "PLAYHEAD_PROXY" in variables or "PLAYHEAD_RUN" in variables


def is_captive(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether all connections of this process arrive at Playhead anyway, so that it needs no proxy variables."""
    return "PLAYHEAD_PROXY" in variables and not any(
        name in variables for each in PROXIES for name in (each, each.lower())
    )


def hold_variables(*, permanently: bool = False) -> None:
    """Set the variables of the running `playhead up` until they are released as often, unless some are set already.

    Raises Unreachable.
    """
    global _holders, _is_permanent
    with _lock:
        if _holders == 0 and not _previous and not is_set(os.environ):
            found = _read_from_command()
            _previous.update({name: os.environ.get(name) for name in found})
            os.environ.update(found)
        _holders += 1
        _is_permanent = _is_permanent or permanently


def release_variables() -> None:
    """Restore the variables when the last holder has released them."""
    global _holders
    with _lock:
        _holders -= 1
        if _holders or _is_permanent:
            return
        for name, value in _previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _previous.clear()


def _read_from_command() -> dict[str, str]:
    command = [*shlex.split(os.environ.get("PLAYHEAD_COMMAND", "playhead")), "env", "--json"]
    try:
        result = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise Unreachable(
            f"cannot run {command[0]} ({error.strerror}); put `playhead` on the PATH or set PLAYHEAD_COMMAND"
        ) from None
    if result.returncode:
        raise Unreachable(result.stderr.decode("utf-8", "replace").strip())
    values: dict[str, str] = json.loads(result.stdout)
    return values


def proxy_addresses(variables: Mapping[str, str] = os.environ) -> tuple[tuple[str, int], ...]:
    """The host and port of the Playhead proxy that the variables name."""
    if proxy := variables.get("PLAYHEAD_PROXY"):
        return _address(proxy)
    if "PLAYHEAD_RUN" not in variables:
        return ()
    urls = {variables[name] for each in PROXIES for name in (each, each.lower()) if name in variables}
    return tuple(address for url in urls for address in _address(url))


def _address(url: str) -> tuple[tuple[str, int], ...]:
    try:
        parts = urlsplit(url)
        return ((parts.hostname, parts.port),) if parts.hostname and parts.port else ()
    except ValueError:
        return ()


def with_run(variables: Mapping[str, str], run: str) -> dict[str, str]:
    """The variables for a program that belongs to the run; unchanged if they do not lead to Playhead."""
    known = proxy_addresses(variables)
    if not known:
        return dict(variables)
    if is_captive(variables):
        # Captive connections belong to the run of the captive command. Connections to the proxy belong to the named run.
        names = [name for each in PROXIES if each != "ALL_PROXY" for name in (each, each.lower())]
        proxies = dict.fromkeys(names, proxy_url(variables["PLAYHEAD_PROXY"], run))
        return {**variables, "NO_PROXY": _LOOPBACK, "no_proxy": _LOOPBACK, **proxies, "PLAYHEAD_RUN": run}
    changed = {
        name: proxy_url(value, run)
        for each in PROXIES
        for name in (each, each.lower())
        if (value := variables.get(name)) and set(_address(value)) & set(known)
    }
    return {**variables, **changed, "PLAYHEAD_RUN": run}


def proxy_url(proxy: str, run: str) -> str:
    """The proxy's URL with the run as its user name. The password, a token, stays."""
    parts = urlsplit(proxy)
    # Escaped twice: aiohttp refuses a colon in a user name, and an id may contain one.
    token = parts.password or "x"
    where = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(quote(run, safe=''))}:{token}@{where}"))
