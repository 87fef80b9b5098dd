"""GET requests to a store server over connections that are used again: a new one costs the server a third of a small request."""

import time
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any, Final

from proxy.processes.http_client import (
    DEFAULT_TIMEOUT,
    HttpAnswer,
    HttpError,
    HttpTimeout,
    parse_url,
    request_target,
    translate_errors,
)

KEPT_FOR: Final = 4.0
"""Seconds that an idle connection is kept. A store server closes it after five (uvicorn's `timeout_keep_alive`)."""

MOST_KEPT: Final = 4
"""Idle connections that are kept."""


class HttpReader:
    """A client of one store server that only reads. Threads may share it."""

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout: float = DEFAULT_TIMEOUT) -> None:
        self._host, self._port, self._prefix = parse_url(url)
        self._headers = dict(headers)
        self._timeout = timeout
        self._idle: deque[tuple[float, HTTPConnection]] = deque()
        """Connections that are idle, and since when; the last one last."""

    def get(self, path: str, params: Mapping[str, Any]) -> HttpAnswer:
        """Send a request and return the response. Raises HttpError."""
        target = request_target(self._prefix, path, params)
        while (connection := self._take_idle()) is not None:
            try:
                return self._ask(connection, target)
            except HttpTimeout:
                raise
            except HttpError:
                pass  # the server has closed it meanwhile, or has ended, which a new connection tells
        return self._ask(HTTPConnection(self._host, self._port, timeout=self._timeout), target)

    def _ask(self, connection: HTTPConnection, target: str) -> HttpAnswer:
        is_kept = False
        try:
            with translate_errors():
                connection.request("GET", target, headers=self._headers)
                response = connection.getresponse()
                answer = HttpAnswer(response.status, response.read())
            is_kept = not response.will_close and len(self._idle) < MOST_KEPT
        finally:
            if not is_kept:
                connection.close()
        if is_kept:
            self._idle.append((time.monotonic(), connection))
        return answer

    def _take_idle(self) -> HTTPConnection | None:
        while self._idle:
            try:
                since, connection = self._idle.pop()
            except IndexError:
                return None  # another thread has taken it
            if time.monotonic() - since < KEPT_FOR:
                return connection
            connection.close()
        return None

    def __del__(self) -> None:
        for _, connection in self._idle:
            connection.close()
