"""`playhead view FILE`: serve the page of a run that is a file, on loopback, until Ctrl-C.

The page and its documents may hold prompts, so only the user who started the command may read them. The address that it prints
has a secret, which becomes a cookie; every other request is refused, as are those that name another host (DNS rebinding).
"""

import hmac
import secrets
import webbrowser
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import click

from calls.keys.profile import Profiles
from calls.redaction.call import Clean
from proxy.errors import Failure
from proxy.terminal.text import printable
from store.bundle.bundle import Bundle
from store.page.assets import load_assets
from store.page.policy import PAGE_HEADERS
from store.page.single_file import write_index
from store.recorded_file.documents import FileDocuments, FileProblem, StoredBody
from store.recorded_file.embedding import encode_document

_COOKIE: Final = "playhead-view"

_SAFE: Final = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}

_BODY: Final = {"content-disposition": "attachment", "content-security-policy": "sandbox; default-src 'none'"}
"""A stored body is foreign content: no browser may show it as a page."""


class FileServer(ThreadingHTTPServer):
    """Serves the documents of one file."""

    daemon_threads = True

    def __init__(self, port: int, documents: FileDocuments) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.documents = documents
        self.secret = secrets.token_urlsafe(24)
        # Browsers send cookies to every port of a host, and other commands may run.
        self.cookie = f"{_COOKIE}-{self.server_port}"

    @property
    def address(self) -> str:
        """The address of the page, with its secret."""
        return f"http://127.0.0.1:{self.server_port}/?key={self.secret}"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that a request may name."""
        return tuple(f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost"))


def view_file(bundle: Bundle, profiles: Profiles, clean: Clean, *, port: int, opens_browser: bool) -> None:
    """Serve the page of a bundle until Ctrl-C."""
    documents = FileDocuments(bundle, profiles, clean)
    try:
        server = FileServer(port, documents)
    except OSError as error:
        raise Failure(f"cannot listen on port {port}: {error.strerror}; choose another with --port") from error
    with server:
        click.echo(f"{printable(documents.run)}: {server.address}")
        click.echo("playhead: press Ctrl-C to end", err=True)
        if opens_browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo(err=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: FileServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer a request for the page, one of its files, or a document."""
        url = urlsplit(self.path)
        if self.headers.get("host") not in self.server.hosts:
            return self._answer_problem(
                FileProblem(403, "foreign_host", "this server answers to loopback host names only")
            )
        parameters = dict(parse_qsl(url.query, keep_blank_values=True))
        if url.path == "/" and self._is_secret(parameters.get("key", "")):
            return self._set_cookie()
        if not self._is_secret(self._cookie()):
            detail = "open the address that `playhead view` has printed: it has a key, which this request lacks"
            return self._answer_problem(FileProblem(401, "token_required", detail))
        if url.path == "/":
            return self._answer(200, write_index(load_assets()), "text/html; charset=utf-8", PAGE_HEADERS)
        if url.path.startswith("/assets/"):
            return self._answer_asset(url.path)
        try:
            found = self.server.documents.answer(unquote(url.path), parameters)
        except FileProblem as problem:
            return self._answer_problem(problem)
        if isinstance(found, StoredBody):
            return self._answer(200, found.data, "application/octet-stream", _BODY)
        return self._answer(200, encode_document(found), "application/json")

    def _answer_asset(self, path: str) -> None:
        name = path.removeprefix("/assets/").removeprefix(f"{load_assets().version}/")
        asset = load_assets().files.get(name)
        if asset is None:
            return self._answer_problem(FileProblem(404, "not_found", "the page has no such file"))
        return self._answer(200, asset.content, asset.media_type)

    def _is_secret(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.server.secret.encode())

    def _cookie(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("cookie", "")).get(self.server.cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _set_cookie(self) -> None:
        """Keep the secret in a cookie, and leave it out of the address, which people copy."""
        cookie = f"{self.server.cookie}={self.server.secret}; HttpOnly; SameSite=Strict; Path=/"
        self._answer(303, b"", "text/plain", {"location": "/", "set-cookie": cookie})

    def _answer_problem(self, problem: FileProblem) -> None:
        self._answer(problem.status, encode_document(problem.members), "application/problem+json")

    def _answer(self, status: int, content: bytes, media_type: str, headers: Any = None) -> None:
        self.send_response(status)
        for name, value in {**_SAFE, **(headers or {}), "content-type": media_type}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """Say no more than the name."""
        return "playhead"

    def log_message(self, *_: object) -> None:
        """Print nothing: the terminal shows the address."""
