"""Write errors as RFC 9457 problem details: what happened, why, and what to do."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from calls.project_runs import DEFAULT_PROJECT
from store.api.answers import JsonResponse
from store.api.deps import Deps
from store.database.blobs import BodyUnavailable, Unavailability
from store.database.connection import DatabaseBusy, DatabaseError
from store.database.object_forms import ObjectStorageDown
from store.query.pages import BadCursor
from store.search.query import InvalidQuery


class Problem(Exception):
    """An error response. `name` identifies the kind of problem for programs."""

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
        """Return the problem as the response to a request for `instance`."""
        return JsonResponse(self.members(instance), self.status, self.headers, media_type="application/problem+json")

    def members(self, instance: str) -> dict[str, Any]:
        """Return the problem as JSON."""
        return {
            "type": f"urn:playhead:problem:{self.name}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
        } | self.more


def not_found(noun: str, name: str, project: str = DEFAULT_PROJECT) -> Problem:
    """Return the 404 for a resource that was requested by name."""
    where = "here" if project == DEFAULT_PROJECT else f"in project {project}"
    detail = f"there is no {noun} {name} {where}: it was never recorded, was deleted, or is in another project"
    return Problem(404, f"unknown_{noun}", detail)


def install_handlers(app: FastAPI) -> None:
    """Answer every error of the app with a problem, including those of the framework."""
    app.add_exception_handler(Problem, _problem_response)
    app.add_exception_handler(HTTPException, _framework_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(BadCursor, _bad_cursor)
    app.add_exception_handler(InvalidQuery, _invalid_query)
    app.add_exception_handler(DatabaseError, _database_unavailable)
    app.add_exception_handler(BodyUnavailable, _body_unavailable)
    app.add_exception_handler(ObjectStorageDown, _objects_unavailable)
    app.add_exception_handler(Exception, _internal_error)


def _problem_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response(request.url.path)


def _framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    headers = error.headers
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers = {"allow": ", ".join(_allowed_methods(request))}  # the framework's has those of one route
    details = {
        400: "the body cannot be read: send a JSON object in UTF-8, with the header content-type: application/json",
        404: f"no such path: {request.url.path}; /docs lists all paths",
        405: f"{request.url.path} does not support {request.method}; /docs lists the methods of all paths",
    }
    detail = details.get(status.value, str(error.detail))
    return Problem(status.value, status.name.lower(), detail, headers=headers).response(request.url.path)


def _allowed_methods(request: Request) -> list[str]:
    """Return the methods of a path, which has a route for each."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    found = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for methods in found for method in methods})


def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    is_not_json = not request.headers.get("content-type", "").partition(";")[0].strip().endswith("json")
    faults = [_fault(fault, is_not_json=is_not_json) for fault in error.errors()]
    summary = "; ".join(f"{fault['where']}: {fault['what']}" for fault in faults)
    return Problem(422, "invalid_request", f"invalid request: {summary}", faults=faults).response(request.url.path)


def _bad_cursor(request: Request, error: Exception) -> Response:
    return Problem(422, "bad_cursor", str(error)).response(request.url.path)


def _invalid_query(request: Request, error: Exception) -> Response:
    return Problem(422, "invalid_query", str(error)).response(request.url.path)


def _database_unavailable(request: Request, error: Exception) -> Response:
    deps: Deps = request.app.state.deps
    if not isinstance(error, DatabaseBusy):
        deps.store_server.note_database_lost()
    detail = f"{error} Recording goes on meanwhile, into the spools."
    return Problem(503, "database_unavailable", detail, headers={"retry-after": "1"}).response(request.url.path)


_BODY_STATUS: Mapping[Unavailability, int] = {"erased": 410, "missing": 502, "damaged": 502, "unreachable": 503}


def body_problem(error: BodyUnavailable) -> Problem:
    """Return the problem of a body that cannot be had. Everything else of its call is there."""
    headers = {"retry-after": "30"} if error.is_temporary else None
    return Problem(_BODY_STATUS[error.kind], f"body_{error.kind}", error.reason, headers=headers)


def _body_unavailable(request: Request, error: Exception) -> Response:
    assert isinstance(error, BodyUnavailable)
    return body_problem(error).response(request.url.path)


def _objects_unavailable(request: Request, error: Exception) -> Response:
    detail = f"object storage is needed for this: {error}; try again when it answers. Nothing was changed"
    return Problem(503, "body_unreachable", detail, headers={"retry-after": "30"}).response(request.url.path)


def _fault(fault: Mapping[str, Any], *, is_not_json: bool) -> dict[str, str]:
    """Return where the fault is and what it is. The input itself is left out: it may hold a secret."""
    words = None
    if fault["type"] == "string_pattern_mismatch":
        name = next(part for part in reversed(fault["loc"]) if isinstance(part, str))
        words = _PATTERN_HINTS.get(name, "it contains a character that is not allowed")
    elif fault["type"] == "model_attributes_type" and len(fault["loc"]) == 1:
        words = "send a JSON object" + (", with the header content-type: application/json" if is_not_json else "")
    return {"where": ".".join(map(str, fault["loc"])), "what": words or str(fault["msg"])}


_RUN_HINT = "invalid run id: use 1 to 128 of the characters A-Z a-z 0-9 . _ : -"
_TIME_HINT = "use a time with its offset, such as 2026-11-21T18:30:00Z"
_PATTERN_HINTS = {
    **dict.fromkeys(("run", "runs", "id", "a", "b", "as", "parent"), _RUN_HINT),
    "allowed_hosts": "use a host such as api.example.com, or *.example.com for all below it",
    "since": _TIME_HINT,
    "until": _TIME_HINT,
    "status": "use a status from 100 to 599, such as 429, or a class from 1xx to 5xx",
    "key": "use the `key` of a call: sha256: and 64 hexadecimal digits",
    "pace": "use instant, recorded, or a factor such as 2.5",
}
"""By parameter: what to write, in place of the regular expression that did not match."""


def _internal_error(request: Request, _: Exception) -> Response:
    # Starlette raises the error again after this answer, so that the server's log has its traceback.
    detail = "the store server failed while it answered. Nothing recorded is lost; its log has the details"
    return Problem(500, "store_server_failed", detail).response(request.url.path)
