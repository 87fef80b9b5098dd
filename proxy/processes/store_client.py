"""A client of the store server's REST API for commands. It turns problems into Failure with a readable message."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from calls.project_runs import DEFAULT_PROJECT
from proxy.errors import Failure
from proxy.processes.http_client import HttpAnswer, HttpClient, HttpError, HttpTimeout
from proxy.run_names import missing_run_failure
from store.generations.names import is_failed_candidate

DOT_SEGMENTS: Final = (".", "..")
"""Names that no path can end in, because HTTP clients resolve them as directories."""

MAX_INT_DIGITS: Final = 4000

LOOK_TIMEOUT: Final = 2.0
"""Seconds that a store server may take to answer whether it can be used. `up` does not stop before."""

PATIENCE: Final = 600.0
"""Seconds to wait for an answer that may take minutes to make, such as the comparison of two long runs."""

_FEWEST_RUNS: Final = {"limit": "1", "fields": "id"}


class NotFound(Failure):
    """The store server does not have what was requested."""


class StoreUnavailable(Failure):
    """The store does not answer at the moment. What is recorded meanwhile waits in the spool."""


class Api:
    """A client of the store server's REST interface. Each request has a connection of its own."""

    def __init__(
        self, url: str, token: str | None = None, token_file: Path | None = None, project: str = DEFAULT_PROJECT
    ) -> None:
        self.url = url
        self._token_file = token_file
        headers = {"authorization": f"Bearer {token}"} if token else {}
        with _translate_errors(url):
            self._http = HttpClient(url, params={"project": project}, headers=headers)

    def get(self, path: str, **query: Any) -> Any:
        """Get the JSON at a path of `/v1`. Raises NotFound or Failure."""
        return self._request_json("GET", path, params=_without_absent(query))

    def get_patiently(self, path: str, **query: Any) -> Any:
        """Get JSON that may take minutes to make."""
        return self._request_json("GET", path, params=_without_absent(query), timeout=PATIENCE)

    def put(self, path: str, body: Mapping[str, Any], *, timeout: float | None = None) -> Any:
        """Put JSON. `timeout`: seconds to wait for the answer."""
        return self._request_json("PUT", path, json=body, **({} if timeout is None else {"timeout": timeout}))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Patch with JSON."""
        return self._request_json("PATCH", path, json=body)

    def post(self, path: str, **request_options: Any) -> Any:
        """Post `json` or `content`."""
        return self._request_json("POST", path, **request_options)

    def delete(self, path: str) -> None:
        """Delete the resource."""
        self._request_json("DELETE", path)

    def list_items(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield every item of a list, page after page."""
        for page in self.list_pages(path, **query):
            yield from page

    def list_pages(self, path: str, **query: Any) -> Iterator[list[dict[str, Any]]]:
        """Yield the items of each page of a list."""
        cursor: str | None = None
        while True:
            page = self.get(path, **query, cursor=cursor)
            yield page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def stream_bytes(self, path: str, **query: str) -> Iterator[bytes]:
        """Yield the bytes at a path as they arrive."""
        with _translate_errors(self.url), self._http.stream("GET", f"/v1{path}", params=query) as answer:
            if answer.status_code >= 400:
                raise self._failure_from(answer.read_whole())
            yield from answer.pieces()

    def stream_events(self, query: Mapping[str, Any], last: str | None) -> Iterator[dict[str, Any]]:
        """Yield the events of `/v1/events` after the last one that was seen, each with its name as `event` and its `id`."""
        headers = {"last-event-id": last} if last else {}
        with (
            _translate_errors(self.url),
            self._http.stream("GET", "/v1/events", params=query, headers=headers, timeout=60.0) as answer,
        ):
            if answer.status_code >= 400:
                raise self._failure_from(answer.read_whole())
            fields: dict[str, str] = {}
            for line in answer.lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                    continue
                if "event" in fields:
                    yield {"event": fields["event"], "id": fields.get("id")} | read_json(fields["data"].encode())
                fields = {}

    def post_for_lines(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Post JSON and yield the JSON Lines of the answer as they arrive. Raises Failure if they break off."""
        with _translate_errors(self.url), self._http.stream("POST", f"/v1{path}", json=body) as answer:
            if answer.status_code >= 400:
                raise self._failure_from(answer.read_whole())
            for line in answer.lines():
                yield read_json(line)

    def troubles(self) -> list[str]:
        """Return the reasons in `/readyz` why recordings do not reach the database."""
        with _translate_errors(self.url):
            return list(self._http.request("GET", "/readyz").json()["troubles"].values())

    def read_troubles(self) -> tuple[list[str], dict[str, str]]:
        """Return why recordings do not reach the database, and what prevents exports, by endpoint. Takes seconds at most."""
        with _translate_errors(self.url):
            report = self._http.request("GET", "/readyz", timeout=5.0).json()
        return list(report["troubles"].values()), dict(report.get("exports", {}))

    def fetch_obstacle(self) -> str | None:
        """Explain why this server has nothing of the data directory at the moment; None if it can be used. Takes seconds at most."""
        try:
            troubles = self._http.request("GET", "/readyz", timeout=LOOK_TIMEOUT).json()["troubles"]
            if "database" in troubles:
                return str(troubles["database"])
            # The token is in the data directory: who refuses it has another one.
            status = self._http.request("GET", "/v1/runs", params=_FEWEST_RUNS, timeout=LOOK_TIMEOUT).status_code
        except HttpTimeout:
            return f"{self.url} does not answer within {LOOK_TIMEOUT:.0f} s."
        except (HttpError, ValueError, KeyError, TypeError) as error:
            why = f" ({error})" if isinstance(error, HttpError) else ""
            return f"nothing that answers /readyz listens at {self.url}{why}."
        if status != 401:
            return None
        return f"{self.url} refuses the API token in {self._token_file}, so it has another data directory: let both share one, or correct store_url."

    def is_healthy(self) -> bool:
        """Whether the store server answers at all."""
        try:
            return self._http.request("GET", "/healthz", timeout=2.0).status_code == 200
        except HttpError:
            return False

    def _request_json(self, method: str, path: str, **request_options: Any) -> Any:
        with _translate_errors(self.url):
            answer = self._http.request(method, f"/v1{path}", **request_options)
        if answer.status_code >= 400:
            raise self._failure_from(answer)
        return read_json(answer.content) if answer.content else None

    def _failure_from(self, answer: HttpAnswer) -> Failure:
        if answer.status_code == 401:
            return Failure(
                f"the store server at {self.url} does not accept the API token in {self._token_file}: it was started on another"
                " data directory, or the file was changed since; name that directory with --data, or restart `playhead up`"
            )
        try:
            problem = answer.json()
            reason = str(problem.get("detail") or problem.get("title"))
        except (ValueError, AttributeError):
            reason = f"the store server answered {answer.status_code}"
        return {404: NotFound, 503: StoreUnavailable}.get(answer.status_code, Failure)(reason)

    def close(self) -> None:
        """End the requests that other threads wait for: after Ctrl-C, a command ends without their answers."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _without_absent(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


@contextmanager
def _translate_errors(url: str) -> Iterator[None]:
    """Translate exceptions of the HTTP client library to Failure."""
    try:
        yield
    except HttpTimeout as error:
        raise StoreUnavailable(f"the store server at {url} took too long to answer: see its /readyz") from error
    except HttpError as error:
        raise Failure(
            f"the store server at {url} cannot be reached ({error}); is `playhead up` still running?"
        ) from error


def read_json(text: bytes | str) -> Any:
    """Parse JSON from the store server. Numbers that Python cannot hold as int or float become Decimal."""
    return json.loads(text, parse_int=_parse_integer, parse_float=_parse_float)


def _parse_integer(digits: str) -> int | Decimal:
    # CPython limits the digits of an int that it parses (CVE-2020-10735).
    return int(digits) if len(digits) <= MAX_INT_DIGITS else Decimal(digits)


def _parse_float(text: str) -> float | Decimal:
    value = float(text)
    return value if math.isfinite(value) else Decimal(text)


def path_segment(name: str) -> str:
    """Quote a name as one segment of a path. Raises NotFound for a name that cannot be one."""
    if name in DOT_SEGMENTS or not name:
        raise NotFound(f"nothing here is called {name!r}; `playhead ls` lists what was recorded")
    return quote(name, safe=":")


def incomplete_reason(api: Api, run: str, times: int = 1) -> str | None:
    """Explain why the store may not have all that was recorded of a run; None if it has. Raises NotFound.

    It is asked up to `times` times, each of which may take ten seconds.
    """
    return settled_run(api, run, times)[1]


def settled_run(api: Api, run: str, times: int = 1) -> tuple[dict[str, Any], str | None]:
    """Return the run, and why the store may not have all of it (`incomplete_reason`). Raises NotFound."""
    shape: dict[str, Any] = {}
    for _ in range(times):
        shape = api.get(f"/runs/{path_segment(run)}", settled="true")
        if shape["settled"]:
            return shape, None
        if troubles := api.troubles():
            return shape, "; ".join(troubles)
    return shape, "the store server has not processed all of it yet"


def resolve_run_name(api: Api, run: str) -> str:
    """Resolve the name `last` to the newest run with calls that is not left over from a replay. Raises Failure."""
    if "/" in run:
        raise missing_run_failure(run)
    if run != "last":
        return run
    newest = next(
        (found for found in api.list_items("/runs", limit=20) if found["calls"] and not is_failed_candidate(found)),
        None,
    )
    if newest is None:
        raise Failure("nothing was recorded yet: start with: playhead record -- COMMAND")
    return str(newest["id"])
