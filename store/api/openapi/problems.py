"""List the problems, and which routes answer with them."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Any, Final, NotRequired, TypedDict

from pydantic import ConfigDict, Field

from store.api.openapi.values import Status

URN: Final = "urn:playhead:problem:"


class FaultSchema(TypedDict):
    """One fault of a request."""

    where: Annotated[str, Field(examples=["query.limit"])]
    what: Annotated[str, Field(examples=["Input should be less than or equal to 500"])]


class ProblemSchema(TypedDict):
    """An error (RFC 9457): what happened, why, and what to do. Some problems have more members."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True, extra="allow")  # type: ignore[misc] # pydantic's place for it
    type: Annotated[str, Field(pattern=f"^{URN}[a-z_]+$")]
    """The kind of problem, for programs."""

    title: Annotated[str, Field(examples=["Not Found"])]
    status: Status
    detail: Annotated[
        str,
        Field(examples=["there is no run night here: it was never recorded, was deleted, or is in another project"]),
    ]
    """For people."""

    instance: Annotated[str, Field(examples=["/v1/runs/night"])]
    """The path of the request."""

    faults: NotRequired[list[FaultSchema]]
    known: NotRequired[list[str]]
    """The parameters that the route has."""


PROBLEMS: Final[Mapping[str, tuple[tuple[int, ...], str]]] = {
    "unknown_parameter": ((400,), "the route has no such query parameter"),
    "repeated_parameter": ((400,), "a parameter that has one value was given several times"),
    "bad_request": ((400,), "the request is not one that HTTP allows, such as a body that is not JSON"),
    "token_required": ((401,), "the request has no token that the API accepts"),
    "token_expired": ((401,), "the token has expired"),
    "token_revoked": ((401,), "the token was revoked"),
    "code_invalid": ((401,), "the login code was used, or is too old"),
    "no_token": ((409,), "the store server has no tokens, so nobody logs in"),
    "scope_missing": ((403,), "the token lacks a scope that the request needs"),
    "foreign_host": ((403,), "a server without tokens answers to loopback host names only"),
    "foreign_origin": ((403,), "the request comes from the page of another web site"),
    "not_found": ((404,), "there is no such path"),
    "unknown_project": ((404,), "there is no such project, or the token may not see it"),
    "unknown_run": ((404,), "there is no such run, or no longer"),
    "unknown_call": ((404,), "there is no such call, or no longer"),
    "unknown_exchange": ((404,), "there is no such exchange, or no longer"),
    "unknown_replay": ((404,), "there is no such replay"),
    "no_checkpoint": ((404,), "no checkpoint was signed yet"),
    "no_response": ((404,), "the exchange ended before a response arrived"),
    "no_certificate": ((404,), "the proxy has not created its certificate yet"),
    "method_not_allowed": ((405,), "the path does not have this method"),
    "request_timeout": ((408,), "the rest of the request's body did not come"),
    "range_not_satisfiable": ((416,), "the range begins after the last byte of the body"),
    "no_fork_agent": ((409,), "no agent is configured that could run a fork"),
    "not_forking": ((409,), "the workers are in a mode that cannot fork"),
    "not_replaying": ((409,), "the workers are in a mode that does not answer from recordings"),
    "not_live": ((409,), "the workers are in a mode that sends nothing"),
    "not_switchable": ((409,), "the workers are in a mode in which runs have no modes of their own"),
    "run_exists": ((409,), "another run has this id"),
    "replay_exists": ((409,), "another replay has this id"),
    "exchanges_exist": ((409,), "another run has exchanges with the same ids"),
    "too_many_canaries": ((409,), "the project has as many canaries as it may have"),
    "invalid_effects": ((422,), "an effect is not what the format says, or its process is Playhead's own"),
    "unknown_question": ((404,), "the run has asked nothing, or not this"),
    "several_questions": ((409,), "several questions of the run wait, and the request names none"),
    "already_answered": ((409,), "the question has an answer, and the first one is valid"),
    "too_many_questions": ((409,), "the run has asked as many questions as it may"),
    "unknown_canary": ((404,), "there is no canary of that name"),
    "retention_runs": ((409,), "another process runs retention on the same database"),
    "other_rules": ((409,), "the store server has other profiles than the client expects"),
    "too_large": ((413, 507), "the request, or its answer, takes more memory than there is"),
    "invalid_request": ((422,), "a parameter or a member of the body is invalid; `faults` lists them"),
    "unknown_field": ((422,), "`fields` names a member that a call does not have"),
    "invalid_query": ((422,), "`q` has nothing to search for"),
    "unknown_group": ((422,), "`group_by` names something that calls cannot be grouped by"),
    "bad_cursor": ((422,), "the cursor is invalid, or belongs to another list"),
    "bad_event_id": ((422,), "the id of the last event was not sent by this API"),
    "bad_match": ((422,), "`match` is not of the form JSONPATH=VALUE"),
    "bad_override": ((422,), "an override is invalid, or fits no step"),
    "bad_effects": ((422,), "a rule of `effects` or `allow` is invalid"),
    "bad_bundle": ((422,), "the file is not a whole bundle"),
    "unknown_format": ((422,), "the bundle is of a format that this version cannot read"),
    "no_such_step": ((422,), "the run ends before this step"),
    "not_copyable": ((422,), "the call cannot be copied in this form"),
    "corrupt_data": ((500,), "what is stored cannot be read; the last line of a list says so"),
    "store_server_failed": ((500,), "the store server failed; its log has the details"),
    "tokens_unreadable": ((503,), "the file of tokens cannot be read"),
    "body_unreachable": ((503,), "a body is in object storage, which does not answer: try again later"),
    "too_many_streams": ((503,), "too many streams of events are open"),
    "database_unavailable": ((503,), "the database does not answer; recording continues"),
}
"""All problems: their status, and what they mean."""

COMMON: Final = (
    "unknown_parameter",
    "repeated_parameter",
    "invalid_request",
    "token_required",
    "token_expired",
    "token_revoked",
    "scope_missing",
    "foreign_host",
    "foreign_origin",
    "unknown_project",
    "tokens_unreadable",
    "store_server_failed",
)
"""The problems of all routes."""

WITH_BODY: Final = ("request_timeout", "too_large")
"""The problems of routes that take a body."""

DATABASE: Final = ("database_unavailable", "too_large", "invalid_request")
"""The problems of routes that read or write what was recorded."""


def problem_responses(names: Iterable[str]) -> dict[str, Any]:
    """Describe the answers with these problems, by status."""
    by_status: dict[int, list[str]] = {}
    for name in dict.fromkeys(names):
        for status in PROBLEMS[name][0]:
            by_status.setdefault(status, []).append(name)
    return {str(status): _problem_response(status, found) for status, found in sorted(by_status.items())}


def _problem_response(status: int, names: list[str]) -> dict[str, Any]:
    types = [URN + name for name in names]
    # `enum`, since generators of clients cannot merge a `const` with the integer of `Problem`, and leave the answer out.
    kind = {"properties": {"type": {"enum": types}, "status": {"enum": [status]}}}
    meanings = {name: {"summary": PROBLEMS[name][1], "value": _example(status, name)} for name in names}
    response: dict[str, Any] = {
        "description": "; ".join(f"`{name}`: {PROBLEMS[name][1]}" for name in names),
        "content": {
            "application/problem+json": {
                "schema": {"allOf": [{"$ref": "#/components/schemas/Problem"}, kind]},
                "examples": meanings,
            }
        },
    }
    if status == 401:
        response["headers"] = {"www-authenticate": {"schema": {"const": "Bearer"}, "required": True}}
    if status == 503:
        response["headers"] = {"retry-after": {"description": "seconds", "schema": {"type": "string"}}}
    return response


def _example(status: int, name: str) -> dict[str, Any]:
    return {
        "type": URN + name,
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": PROBLEMS[name][1],
        "instance": "/v1/runs",
    }
