"""Query a running `playhead up` over its REST API."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_API = "http://127.0.0.1:8081"
TIMEOUT = 30.0


class Unreachable(RuntimeError):
    """The API cannot be reached; the message says why and what to do."""


class Problem(RuntimeError):
    """The API refused a request (RFC 9457)."""

    def __init__(self, url: str, status: int, members: Mapping[str, Any]) -> None:
        self.url = url
        self.status = status
        self.members = members
        """The whole problem."""

        self.type = str(members.get("type") or "about:blank")
        """The kind of problem, for programs: `urn:playhead:problem:unknown_run`."""

        self.title = str(members.get("title") or "")
        self.detail = str(members.get("detail") or "")
        super().__init__(self.detail or f"{url} answered {status}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Problem, (self.url, self.status, self.members)


def fetch_calls(run: str) -> list[dict[str, Any]]:
    """Fetch all calls of a run, after everything acknowledged has been stored. Raises Unreachable."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        # Assertions need texts and arguments, so fetch whole calls, in small pages.
        query = {"settled": "true", "limit": "50", "fields": "*", **({"cursor": cursor} if cursor else {})}
        page = _fetch(f"/v1/runs/{quote(run, safe='')}/calls?{urlencode(query)}")
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            return found


def fetch_envelope(run: str) -> dict[str, Any]:
    """Fetch the envelope of a run, after everything acknowledged has been stored. Raises Unreachable."""
    _fetch(f"/v1/runs/{quote(run, safe='')}/calls?settled=true&limit=1")
    return _fetch(f"/v1/runs/{quote(run, safe='')}/envelope")


def fetch_bundle(run: str) -> bytes:
    """Fetch a run as a bundle, after everything acknowledged has been stored. Raises Unreachable."""
    _fetch(f"/v1/runs/{quote(run, safe='')}/calls?settled=true&limit=1")
    return _fetch_bytes(f"/v1/runs/{quote(run, safe='')}/bundle?proof=false")


def _fetch(path: str) -> dict[str, Any]:
    page: dict[str, Any] = json.loads(_fetch_bytes(path))
    return page


def _fetch_bytes(path: str) -> bytes:
    try:
        return _open(path)
    except Problem as problem:
        raise Unreachable(f"{problem.url} answered {problem.status}: {problem.detail}") from None


def fetch_json(path: str, url: str | None = None, token: str | None = None, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Fetch a JSON object. The address and the token are those of the environment if none are given.

    Raises Problem if the API refuses the request, Unreachable if it does not answer.
    """
    base = _base(url)
    try:
        page: dict[str, Any] = json.loads(_open(path, url, token, timeout))
    except ValueError as error:
        raise Unreachable(f"{base} does not answer as Playhead does ({error}); check PLAYHEAD_API") from None
    return page


def post_json(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Post a JSON object, and return the one that is answered. Raises Unreachable, which says why a request was refused."""
    try:
        answer: dict[str, Any] = json.loads(_open(path, content=json.dumps(body).encode()))
    except Problem as problem:
        raise Unreachable(f"{problem.url} answered {problem.status}: {problem.detail}") from None
    return answer


def _base(url: str | None) -> str:
    return (url or os.environ.get("PLAYHEAD_API") or DEFAULT_API).rstrip("/")


def _open(
    path: str,
    url: str | None = None,
    token: str | None = None,
    timeout: float = TIMEOUT,
    content: bytes | None = None,
) -> bytes:
    base = _base(url)
    path = _with_project(path)
    request = urllib.request.Request(f"{base}{path}", data=content)  # noqa: S310 - the user's own setting
    if content is not None:
        request.add_header("Content-Type", "application/json")
    if token := token or _api_token():
        request.add_header("Authorization", f"Bearer {token}")
    # Never use a proxy, least of all the one that records.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            received: bytes = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise _read_problem(f"{base}{path}", error.code, error.read()) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(
            f"cannot reach Playhead at {base} ({error}); start it with `playhead up`, or set PLAYHEAD_API"
        ) from None
    return received


def _with_project(path: str) -> str:
    """Ask for the project of PLAYHEAD_PROJECT, if the request names none itself."""
    project = os.environ.get("PLAYHEAD_PROJECT")
    if not project or "project" in parse_qs(urlsplit(path).query):
        return path
    return f"{path}{'&' if '?' in path else '?'}{urlencode({'project': project})}"


def _api_token() -> str | None:
    """The API token: from the environment, from the file that `playhead record` and `playhead env` name, or from the
    `playhead` command. None if none of them has it; the API then says what to do."""
    if token := os.environ.get("PLAYHEAD_API_TOKEN"):
        return token
    if file := os.environ.get("PLAYHEAD_API_TOKEN_FILE"):
        try:
            with open(file, encoding="utf-8") as opened:
                return opened.read().strip()
        except OSError as error:
            raise Unreachable(
                f"cannot read the API token in {file} ({error.strerror}); run as the user that runs `playhead up`, or set"
                " PLAYHEAD_API_TOKEN to what `playhead token` prints there"
            ) from None
    command = [*shlex.split(os.environ.get("PLAYHEAD_COMMAND", "playhead")), "token"]
    try:
        result = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return None
    return result.stdout.decode("utf-8", "replace").strip() if result.returncode == 0 else None


def _read_problem(url: str, status: int, body: bytes) -> Problem:
    try:
        members = json.loads(body)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        members = {"detail": body[:200].decode("utf-8", "replace")}
    return Problem(url, status, members)
