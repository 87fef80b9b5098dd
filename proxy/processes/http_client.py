"""Plain HTTP requests to a store server, with the standard library alone: to import an HTTP library takes as long as a command."""

import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

if TYPE_CHECKING:
    # A replay of a file asks no store server, and a recording does when its command runs.
    from http.client import HTTPConnection, HTTPResponse

PIECE: Final = 1 << 16

DEFAULT_TIMEOUT: Final = 30.0

_PATH_CHARACTERS: Final = "/%:@!$&'()*+,;=~"


class HttpError(Exception):
    """A request failed without a response, or its response broke off."""


class HttpTimeout(HttpError):
    """A response took too long."""


class _ContentError(Exception):
    """What was to be sent could not be read."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class HttpAnswer(msgspec.Struct, frozen=True):
    """A whole response."""

    status_code: int
    content: bytes

    def json(self) -> Any:
        """Parse the content as JSON. Raises ValueError."""
        return json.loads(self.content)


class HttpStream:
    """A response that is read as it arrives."""

    def __init__(self, response: "HTTPResponse") -> None:
        self._response = response
        self.status_code = response.status

    def read_whole(self) -> HttpAnswer:
        """Read all of it."""
        with translate_errors():
            return HttpAnswer(self.status_code, self._response.read())

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes as they arrive."""
        while True:
            with translate_errors():
                piece = self._response.read1(PIECE)
            if not piece:
                return
            yield piece

    def lines(self) -> Iterator[str]:
        """Yield its lines as they arrive, without their ends."""
        while True:
            with translate_errors():
                line = self._response.readline()
            if not line:
                return
            yield line.decode("utf-8", "replace").rstrip("\r\n")


class HttpClient:
    """A client of one store server. Each request has a connection of its own, so that threads may share the client."""

    def __init__(self, url: str, *, params: Mapping[str, str], headers: Mapping[str, str]) -> None:
        self._host, self._port, self._prefix = parse_url(url)
        self._params = dict(params)
        self._headers = dict(headers)
        self._open_connections: set[HTTPConnection] = set()
        self._is_closed = False

    def close(self) -> None:
        """End the requests of other threads, and send no more: whoever waits for one gets HttpError at once."""
        self._is_closed = True
        for connection in list(self._open_connections):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def request(self, method: str, path: str, **options: Any) -> HttpAnswer:
        """Send a request, with the options of `stream`, and return the response. Raises HttpError."""
        with self.stream(method, path, **options) as answer:
            return answer.read_whole()

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | Iterable[bytes] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Iterator[HttpStream]:
        """Send a request with `json` or `content` as its body, and yield the response. Raises HttpError."""
        from http.client import HTTPConnection

        connection = HTTPConnection(self._host, self._port, timeout=timeout)
        target = request_target(self._prefix, path, {**self._params, **(params or {})})
        all_headers = {**self._headers, **(headers or {})}
        body: bytes | Iterator[bytes] | None = None
        if json is not None:
            body = _encode_json(json)
            all_headers["content-type"] = "application/json"
        elif isinstance(content, bytes):
            body = content
        elif content is not None:
            body = _read_content(content)
            all_headers["transfer-encoding"] = "chunked"
        self._open_connections.add(connection)
        try:
            if self._is_closed:
                raise HttpError("the command was interrupted")
            with translate_errors():
                response = _send(connection, method, target, body, all_headers)
            yield HttpStream(response)
        except _ContentError as failure:
            raise failure.error from None
        finally:
            self._open_connections.discard(connection)
            connection.close()


def parse_url(url: str) -> tuple[str, int | None, str]:
    """Return the host and port of a store server, and the path before all others. Raises HttpError."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise HttpError(f"{url} is not the URL of a store server: it begins with http://")
    return parts.hostname, parts.port, parts.path.rstrip("/")


def request_target(prefix: str, path: str, params: Mapping[str, Any]) -> str:
    """Return what the request line names."""
    return f"{prefix}{quote(path, safe=_PATH_CHARACTERS)}?{_encode_query(params)}"


def _send(
    connection: "HTTPConnection",
    method: str,
    target: str,
    body: bytes | Iterator[bytes] | None,
    headers: Mapping[str, str],
) -> "HTTPResponse":
    try:
        connection.request(method, target, body=body, headers=headers, encode_chunked=not isinstance(body, bytes))
    except (BrokenPipeError, ConnectionResetError):
        # A server that refuses a body may answer before it has read all of it.
        if connection.sock is None:
            raise
    return connection.getresponse()


def _read_content(content: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from content
    except OSError as error:
        raise _ContentError(error) from error


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise HttpError for what the system and the standard library raise."""
    from http.client import HTTPException

    try:
        yield
    except TimeoutError as error:
        raise HttpTimeout(str(error) or "it took too long") from error
    except (OSError, HTTPException) as error:
        raise HttpError(str(error) or type(error).__name__) from error


def _encode_query(params: Mapping[str, Any]) -> str:
    pairs = [
        (name, _parameter_text(each))
        for name, value in params.items()
        for each in (value if isinstance(value, list | tuple) else (value,))
    ]
    return urlencode(pairs)


def _parameter_text(value: Any) -> str:
    match value:
        case True:
            return "true"
        case False:
            return "false"
        case None:
            return ""
        case _:
            return str(value)


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
