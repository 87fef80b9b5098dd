"""Name the run of what is called inside a block: by the credentials in the proxy variables, which clients made inside read."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

from playhead.rest import Unreachable, calls_of
from playhead.runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

RUN_ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}")
"""As the server's (`calls/identity.py`): neither `.` nor `..`, which no URL can hold."""

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")

_told_by_the_test: Callable[[], Sequence[Mapping[str, Any]]] | None = None


def tell(calls: Callable[[], Sequence[Mapping[str, Any]]] | None) -> None:
    """For test plugins: what a test has asked so far, in place of a running `playhead up`. None: no test runs."""
    global _told_by_the_test
    _told_by_the_test = calls


@contextmanager
def run(id: str) -> Iterator[Run]:  # noqa: A002 - the API's word
    """What is called inside belongs to this run: by clients that are made inside, and programs that are started inside.

    The environment is that of the whole process: for runs side by side in one process, give each client a proxy of its own,
    `http://RUN:x@host:port`.
    """
    if not RUN_ID.fullmatch(id):
        raise ValueError(f"{id!r} cannot name a run; use 1 to 128 of A-Z a-z 0-9 . _ : - (not `.` or `..`)")
    if (told := _told_by_the_test) is not None:
        # A marked test has one recording, whatever runs it names.
        begun = len(told())
        yield Run(id, lambda: told()[begun:])
        return
    changed = _turned(id)
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield Run(id, lambda: calls_of(id))
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _turned(id: str) -> Mapping[str, str]:  # noqa: A002 - as above
    """The variables that name the run: those in force with other credentials, or those of the running `playhead up`."""
    if "PLAYHEAD_RUN" in os.environ:
        names = [name for each in PROXIES for name in (each, each.lower()) if name in os.environ]
        return {**{name: _addressed(os.environ[name], id) for name in names}, "PLAYHEAD_RUN": id}
    command = [*shlex.split(os.environ.get("PLAYHEAD_COMMAND", "playhead")), "env", "--run", id, "--json"]
    try:
        told = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise Unreachable(
            f"cannot run {command[0]} ({error.strerror}); put `playhead` on the PATH or set PLAYHEAD_COMMAND"
        ) from None
    if told.returncode:
        raise Unreachable(told.stderr.decode("utf-8", "replace").strip())
    values: dict[str, str] = json.loads(told.stdout)
    return values


def _addressed(proxy: str, id: str) -> str:  # noqa: A002 - as above
    parts = urlsplit(proxy)
    # Escaped twice: aiohttp refuses a colon in a user's name, and an id may hold some.
    token = parts.password or "x"
    where = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(quote(id, safe=''))}:{token}@{where}"))
