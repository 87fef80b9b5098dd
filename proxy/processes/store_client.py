"""Send requests to the store server for a command, and turn its problems into sentences."""

import json
import math
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import httpx2

from proxy.errors import Failure
from store.generations.names import remains

DOTS: Final = (".", "..")
"""What no path of the store server can end in: clients take it for the directory."""


NOBODY: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no certificate: store servers speak plain HTTP, and to read the world's roots takes a tenth of a second for each client."""

LONGEST_INT: Final = 4000


class NotFound(Failure):
    """The store server does not know what was asked for."""


class Away(Failure):
    """The store cannot be asked just now. What is recorded meanwhile waits in the spool."""


class Api:
    """A client of the store server's REST interface. As a context manager it closes its connections."""

    def __init__(self, url: str, token: str | None = None, token_file: Path | None = None) -> None:
        self.url = url
        self._token_file = token_file
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # The environment's proxies are not for us: the store server is our own.
        self._http = httpx2.Client(base_url=url, headers=headers, timeout=30.0, trust_env=False, verify=NOBODY)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON at a path of `/v1`. Raises NotFound or Failure."""
        return self._json("GET", path, params={name: value for name, value in query.items() if value is not None})

    def put(self, path: str, body: Mapping[str, Any], *, timeout: float | None = None) -> Any:
        """Put JSON, within so many seconds."""
        return self._json("PUT", path, json=body, **({} if timeout is None else {"timeout": timeout}))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Patch with JSON."""
        return self._json("PATCH", path, json=body)

    def post(self, path: str, **what: Any) -> Any:
        """Post `json` or `content`."""
        return self._json("POST", path, **what)

    def delete(self, path: str) -> None:
        """Delete what is there."""
        self._json("DELETE", path)

    def each(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Every item of a list, page after page."""
        cursor: str | None = None
        while True:
            page = self.get(path, **query, cursor=cursor)
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def raw(self, path: str) -> Iterator[bytes]:
        """The bytes at a path, as they come."""
        with _sentences(self.url), self._http.stream("GET", f"/v1{path}") as answer:
            if answer.status_code >= 400:
                answer.read()
                raise self._failure(answer)
            yield from answer.iter_raw()

    def lines(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON Lines that a POST of JSON is answered with, as they come. Raises Failure where they break off."""
        with _sentences(self.url), self._http.stream("POST", f"/v1{path}", json=body) as answer:
            if answer.status_code >= 400:
                answer.read()
                raise self._failure(answer)
            for line in answer.iter_lines():
                yield read_json(line)

    def troubles(self) -> list[str]:
        """What keeps recordings from the database, as `/readyz` tells it."""
        with _sentences(self.url):
            return list(self._http.get("/readyz").json()["troubles"].values())

    def obstacle(self) -> str | None:
        """Why no recording can be fetched just now, within seconds; None where one can be."""
        try:
            troubles = self._http.get("/readyz", timeout=5.0).json()["troubles"]
        except (httpx2.HTTPError, ValueError, KeyError, TypeError):
            return f"nothing that answers /readyz listens at {self.url}."
        return str(troubles["database"]) if "database" in troubles else None

    def healthy(self) -> bool:
        """Whether it answers at all."""
        try:
            return self._http.get("/healthz", timeout=2.0).status_code == 200
        except httpx2.HTTPError:
            return False

    def _json(self, method: str, path: str, **what: Any) -> Any:
        with _sentences(self.url):
            answer = self._http.request(method, f"/v1{path}", **what)
        if answer.status_code >= 400:
            raise self._failure(answer)
        return read_json(answer.content) if answer.content else None

    def _failure(self, answer: httpx2.Response) -> Failure:
        if answer.status_code == 401:
            return Failure(
                f"the store server at {self.url} does not accept the API token in {self._token_file}; it was started on another"
                " data directory, or the file was changed since: name that directory with --data, or start `playhead up` again"
            )
        try:
            problem = answer.json()
            words = str(problem.get("detail") or problem.get("title"))
        except (ValueError, AttributeError):
            words = f"the store server answered {answer.status_code}"
        return {404: NotFound, 503: Away}.get(answer.status_code, Failure)(words)

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _sentences(url: str) -> Iterator[None]:
    """Rename the client library's exceptions at the border."""
    try:
        yield
    except httpx2.TimeoutException as error:
        raise Away(f"the store server at {url} took too long to answer; look at /readyz there") from error
    except httpx2.HTTPError as error:
        raise Failure(
            f"the store server at {url} cannot be reached ({error}); is `playhead up` still running?"
        ) from error


def read_json(text: bytes | str) -> Any:
    """What the store server tells, which holds what anybody answered: a number that Python makes no int or float of is a Decimal."""
    return json.loads(text, parse_int=_integer, parse_float=_float)


def _integer(digits: str) -> int | Decimal:
    # CPython reads no int of more digits than it writes (CVE-2020-10735).
    return int(digits) if len(digits) <= LONGEST_INT else Decimal(digits)


def _float(text: str) -> float | Decimal:
    value = float(text)
    return value if math.isfinite(value) else Decimal(text)


def segment(name: str) -> str:
    """A name as one segment of a path. Raises NotFound for one that would be another path."""
    if name in DOTS or not name:
        raise NotFound(f"nothing here is called {name!r}; `playhead ls` lists what was recorded")
    return quote(name, safe=":")


def lacks(api: Api, run: str, times: int = 1) -> str | None:
    """Why the store may lack something of what was recorded of a run; None where it has all of it. Each time it is asked it
    takes up to ten seconds to say no. Raises NotFound."""
    for _ in range(times):
        if api.get(f"/runs/{segment(run)}", settled="true")["settled"]:
            return None
        if troubles := api.troubles():
            return "; ".join(troubles)
    return "the store server has not come to the end of it"


def meant(api: Api, run: str) -> str:
    """The run that a person names: `last` is the newest in which something was recorded for its own sake. Raises Failure."""
    if run != "last":
        return run
    newest = next((found for found in api.each("/runs", limit=20) if found["calls"] and not remains(found)), None)
    if newest is None:
        raise Failure("nothing was recorded yet; start with: playhead record -- COMMAND")
    return str(newest["id"])
