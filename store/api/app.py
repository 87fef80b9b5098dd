"""The FastAPI application: every route behind the guard, which checks the token."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from fastapi import Depends, FastAPI

from store.api import helper_answers as aside
from store.api import problems
from store.api.deps import Deps
from store.api.guard import Guard, Tokens
from store.api.parameters import understood
from store.api.routes import (
    calls,
    certificate,
    diff,
    drift,
    exchanges,
    forks,
    health,
    imports,
    manual,
    rekey,
    replays,
    runs,
)
from store.api.spilled_answers import Spill
from store.query.exchanges import TooLarge

ROUTERS = (
    ("", health.router),
    ("", certificate.router),
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


def create(desk: Deps, tokens: Sequence[str], token_file: Path | None = None) -> FastAPI:
    """The REST interface over one store server. Without tokens it answers whoever reaches its socket by a loopback name.

    `token_file` is where one of the tokens lies, for the person whose request lacks it.
    """
    app = FastAPI(
        title="Playhead",
        version=version("playhead"),
        dependencies=[Depends(understood)],
        # FastAPI's own pages load scripts from elsewhere, and its routes know no dependencies.
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )
    install(app, desk)
    app.add_middleware(Spill, directory=desk.spilled)
    app.add_middleware(Guard, tokens=Tokens(tokens, token_file))
    return app


def install(app: FastAPI, desk: Deps) -> None:
    """The routes over a store, and its problems. A helper process has the same ones, without guard and tokens."""
    app.state.desk = desk
    for prefix, router in ROUTERS:
        app.include_router(router, prefix=prefix)
    problems.install(app)
    app.add_exception_handler(TooLarge, aside.answer)
