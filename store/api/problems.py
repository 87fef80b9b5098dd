"""Write errors as RFC 9457 problem details: one sentence with what happened, why, and what to do."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from store.api.answers import Json
from store.api.deps import Deps
from store.database.connection import DatabaseError
from store.query.filters import BadCursor


class Problem(Exception):
    """An answer that is not what was asked for. `name` tells programs which one it is."""

    def __init__(
        self, status: int, name: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.headers = headers
        self.more = more

    def response(self, instance: str) -> Response:
        """The problem as an answer to a request for `instance`."""
        members = {
            "type": f"urn:playhead:problem:{self.name}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
        }
        return Json(members | self.more, self.status, self.headers, media_type="application/problem+json")


def unknown(noun: str, name: str) -> Problem:
    """A 404 for something that was asked for by name."""
    return Problem(404, f"unknown_{noun}", f"there is no {noun} {name} here; it was never recorded, or was deleted")


def install(app: FastAPI) -> None:
    """Make every error of the app a problem, also those of the framework."""
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _framework)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(BadCursor, _bad_cursor)
    app.add_exception_handler(DatabaseError, _away)
    app.add_exception_handler(Exception, _ours)


def _problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response(request.url.path)


def _framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    details = {
        404: f"there is nothing at {request.url.path}; /docs lists what there is",
        405: f"{request.method} is not possible at {request.url.path}; /docs lists what is",
    }
    detail = details.get(status.value, str(error.detail))
    return Problem(status.value, status.name.lower(), detail, headers=error.headers).response(request.url.path)


def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    unread = not request.headers.get("content-type", "").partition(";")[0].strip().endswith("json")
    faults = [_fault(fault, unread=unread) for fault in error.errors()]
    said = "; ".join(f"{fault['where']}: {fault['what']}" for fault in faults)
    return Problem(422, "invalid_request", f"the request cannot be understood: {said}", faults=faults).response(
        request.url.path
    )


def _bad_cursor(request: Request, error: Exception) -> Response:
    return Problem(422, "bad_cursor", str(error)).response(request.url.path)


def _away(request: Request, error: Exception) -> Response:
    desk: Deps = request.app.state.desk
    desk.store_server.database_lost()
    detail = f"{error} Recording goes on meanwhile, into the spools."
    return Problem(503, "database_unavailable", detail, headers={"retry-after": "1"}).response(request.url.path)


def _fault(fault: Mapping[str, Any], *, unread: bool) -> dict[str, str]:
    """Where and what, without the input itself: it may hold what must not be shown again. `unread`: it did not come as JSON."""
    words = None
    if fault["type"] == "string_pattern_mismatch":
        name = next(part for part in reversed(fault["loc"]) if isinstance(part, str))
        words = _IN_WORDS.get(name, "it has a character that cannot be here")
    elif fault["type"] == "model_attributes_type" and len(fault["loc"]) == 1:
        words = "send a JSON object" + (", with the header content-type: application/json" if unread else "")
    return {"where": ".".join(map(str, fault["loc"])), "what": words or str(fault["msg"])}


_A_RUN = "no run can be called so: use 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
_A_TIME = "write a time with its offset, such as 2026-11-21T18:30:00Z"
_IN_WORDS = {
    **dict.fromkeys(("run", "runs", "id", "a", "b", "as", "parent"), _A_RUN),
    "allowed_hosts": "write a host such as api.example.com, or *.example.com for all below it",
    "since": _A_TIME,
    "until": _A_TIME,
    "status": "write one such as 429, or a class of them such as 4xx",
    "pace": "write instant, recorded, or a factor such as 2.5",
}
"""What a pattern would not tell whoever reads it."""


def _ours(request: Request, _: Exception) -> Response:
    # Starlette raises the error again after this answer, so that the server's log has its traceback.
    detail = "the store server failed while it answered; nothing recorded is lost; its log has the details"
    return Problem(500, "store_server_failed", detail).response(request.url.path)
