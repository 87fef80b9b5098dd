"""What a process does once, and what it hands to clients and programs that are not hooked."""

from __future__ import annotations

import os

from playhead.binding import checked_id, current_run
from playhead.environment import hold_variables, is_set, proxy_url, with_run
from playhead.hooks import install_hooks
from playhead.rest import Unreachable


def install() -> None:
    """Turn this process to the running `playhead up` and install the hooks. Call it once, before clients are made.

    A process that Playhead started, or that has the variables of `playhead env`, is turned to it already.
    """
    if not is_set(os.environ):
        hold_variables(permanently=True)
    install_hooks()


def variables(run: str | None = None) -> dict[str, str]:
    """The environment for a program of this run, else of the one that is current here, that `subprocess` does not start."""
    name = current_run() if run is None else checked_id(run)
    return with_run(os.environ, name) if name else dict(os.environ)


def proxy(run: str | None = None) -> str:
    """The proxy's URL with this run in it, else the one that is current here, for a client that is not hooked. Raises Unreachable."""
    names = ("HTTPS_PROXY", "HTTP_PROXY", "PLAYHEAD_PROXY")
    url = next(filter(None, map(os.environ.get, names)), None) if is_set(os.environ) else None
    if not url:
        raise Unreachable("no Playhead is known to this process: call playhead.install(), or enter playhead.run(...)")
    name = current_run() if run is None else checked_id(run)
    return proxy_url(url, name) if name else url
