"""A route that is built when it is first needed, once, whoever needs it."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from store.api.deferred_route import DeferredRoute


def number(count: int, more: int = 0) -> int:
    """Two parameters."""
    return count + more


def test_a_route_is_built_once_by_the_first_of_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = APIRoute.__init__

    def note(self: APIRoute, path: str, *args: Any, **options: Any) -> None:
        built.append(path)
        build(self, path, *args, **options)

    monkeypatch.setattr(APIRoute, "__init__", note)
    bare = DeferredRoute("/count/{count}", number)
    route = bare.with_prefix("/v1", [])
    assert bare.with_prefix("/v1", []) is route, "another app of this process builds nothing"
    assert bare.with_prefix("/v1", [Depends(number)]) is not route
    assert (route.path, route.methods, built) == ("/v1/count/{count}", {"GET"}, [])
    together = Barrier(4)

    def read(_: int) -> object:
        together.wait()
        return route.dependant

    with ThreadPoolExecutor(4) as pool:
        assert {id(each) for each in pool.map(read, range(4))} == {id(route.dependant)}
    assert built == ["/v1/count/{count}"]
    with pytest.raises(AttributeError, match="nothing"):
        _ = route.nothing


def test_a_deferred_route_answers_like_any_other() -> None:
    asked: list[str] = []
    app = FastAPI()
    route = DeferredRoute("/count/{count}", number, methods=["POST"])
    app.router.routes.append(route.with_prefix("/v1", [Depends(lambda: asked.append("first"))]))
    with TestClient(app) as client:
        assert client.post("/v1/count/3?more=4").json() == 7
        assert client.post("/v1/count/x").status_code == 422
        assert client.get("/v1/count/3").status_code == 405
        assert client.post("/count/3").status_code == 404
    assert asked[:1] == ["first"]
