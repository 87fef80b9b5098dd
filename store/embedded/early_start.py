"""Start an embedded Postgres in a thread, while the store server's modules are imported."""

import threading
from pathlib import Path

from store.embedded.postgres import EmbeddedPostgresError, EmbeddedServer, ensure_server


class EarlyStart:
    """A Postgres that is being started."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._server: EmbeddedServer | None = None
        self._error: EmbeddedPostgresError | OSError | None = None
        self._thread = threading.Thread(target=self._start, daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self._server = ensure_server(self._base)
        except (EmbeddedPostgresError, OSError) as error:
            self._error = error

    def wait(self) -> EmbeddedServer:
        """Wait for the server and return it. Raises what starting it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._server is None:
            # The thread ended with another exception, which it has printed: let it be raised here.
            return ensure_server(self._base)
        return self._server

    def close(self) -> None:
        """Wait for the server and release it, if it was not released: a start that is cut off would be in the way of the next."""
        self._thread.join()
        if self._server is not None:
            self._server.close()
