"""Set up a process once, and provide URLs and variables for clients and programs that are not hooked."""

from __future__ import annotations

import os

from playhead.binding import current_run, require_run_id
from playhead.environment import hold_variables, is_set, proxy_url, with_run
from playhead.hooks import install_hooks
from playhead.rest import Unreachable


def install() -> None:
    """Connect this process to the running `playhead up` and install the hooks. Call it once, before creating clients.

    A process that Playhead started, or that has the variables of `playhead env`, is already connected.
    """
    if not is_set(os.environ):
        hold_variables(permanently=True)
    install_hooks()


def variables(run: str | None = None) -> dict[str, str]:
    """The environment for a program of a run (default: the current one) that is not started by `subprocess`."""
    name = current_run() if run is None else require_run_id(run)
    return with_run(os.environ, name) if name else dict(os.environ)


def proxy(run: str | None = None) -> str:
    """The URL of the proxy with a run (default: the current one), for a client that is not hooked. Raises Unreachable."""
    names = ("HTTPS_PROXY", "HTTP_PROXY", "PLAYHEAD_PROXY")
    url = next(filter(None, map(os.environ.get, names)), None) if is_set(os.environ) else None
    if not url:
        raise Unreachable(
            "this process is not connected to Playhead: call playhead.install(), or enter playhead.run(...)"
        )
    name = current_run() if run is None else require_run_id(run)
    return proxy_url(url, name) if name else url
