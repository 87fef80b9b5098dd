"""The app: every route behind the guard and the tokens."""

from collections.abc import Sequence
from importlib.metadata import version

from fastapi import Depends, FastAPI

from store.api import calls, diff, drift, exchanges, forks, health, imports, manual, problems, rekey, replays, runs
from store.api.asked import understood
from store.api.desk import Desk
from store.api.guard import Guard, Tokens

ROUTERS = (
    ("", health.router),
    ("", manual.router),
    ("/v1", runs.router),
    ("/v1", diff.router),
    ("/v1", drift.router),
    ("/v1", calls.router),
    ("/v1", exchanges.router),
    ("/v1", replays.router),
    ("/v1", forks.router),
    ("/v1", imports.router),
    ("/v1", rekey.router),
)


def create(desk: Desk, tokens: Sequence[str]) -> FastAPI:
    """The REST interface over one keeper. Without tokens it answers whoever reaches its socket by a loopback name."""
    known = Tokens(tokens)
    app = FastAPI(
        title="Playhead",
        version=version("playhead"),
        dependencies=[Depends(known.admit), Depends(understood)],
        # FastAPI's own pages load scripts from elsewhere, and its routes know no dependencies.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    app.state.desk = desk
    for prefix, router in ROUTERS:
        app.include_router(router, prefix=prefix)
    problems.install(app)
    app.add_middleware(Guard, tokens=known)
    return app
