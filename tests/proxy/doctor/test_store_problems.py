"""`playhead doctor` says what the running store server lacks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from proxy.cli.environment import _store_problems
from proxy.settings import Settings
from store.datadir import open_data_dir

REPORT = {"status": "in trouble", "troubles": {"database": "Postgres refuses access."}, "exports": {"http://e": "no"}}


class Unready(BaseHTTPRequestHandler):
    """A store server that is not ready."""

    def do_GET(self) -> None:
        body = json.dumps(REPORT).encode()
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def unready_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Unready) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_keeps_recordings_from_the_database_and_from_receivers_is_said(tmp_path: Path) -> None:
    settings, data = Settings(data=tmp_path), open_data_dir(tmp_path)
    assert _store_problems(settings) == []
    with unready_server() as url, data.store_lock.hold():
        data.announce("store", {"api": url})
        stored, exported = _store_problems(settings)
    assert stored.endswith("is in trouble: Postgres refuses access.")
    assert exported.startswith("the export to http://e fails: no")


def test_a_store_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    data = open_data_dir(tmp_path)
    data.announce("store", {"api": "http://127.0.0.1:1"})
    with data.store_lock.hold():
        (sentence,) = _store_problems(Settings(data=tmp_path))
    assert "http://127.0.0.1:1" in sentence
