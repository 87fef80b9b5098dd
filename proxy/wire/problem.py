"""The worker's own refusals as problem+json (RFC 9457), with an `error` member that every SDK shows."""

import json
from dataclasses import dataclass
from http import HTTPStatus


@dataclass(frozen=True, slots=True)
class Problem(Exception):
    """A refusal by the worker, sent in place of the upstream's response."""

    status: int
    code: str
    detail: str
    """What happened, why, and what to do."""

    @property
    def reason(self) -> str:
        """The reason phrase of the status."""
        return HTTPStatus(self.status).phrase

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """All header fields of the response."""
        own = {
            401: (("WWW-Authenticate", 'Basic realm="playhead"'),),
            407: (("Proxy-Authenticate", 'Basic realm="playhead"'),),
        }.get(self.status, ())
        # SDKs retry by status: tell them to retry only what may succeed without a change.
        again = "true" if self.status in (502, 503, 504) else "false"
        return (
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(len(self.body))),
            ("X-Should-Retry", again),
            *own,
        )

    @property
    def body(self) -> bytes:
        """The problem as JSON."""
        return json.dumps(
            {
                "type": f"urn:playhead:problem:{self.code}",
                "title": self.reason,
                "status": self.status,
                "detail": self.detail,
                "error": {"type": "playhead_refused", "code": self.code, "message": self.detail},
                "message": self.detail,  # where AWS's SDKs look
            }
        ).encode()

    def http1_response(self) -> bytes:
        """Return the complete response, after which the connection closes."""
        lines = [f"HTTP/1.1 {self.status} {self.reason}", *(f"{k}: {v}" for k, v in self.headers), "Connection: close"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def unanswerable_size_problem(limit: int) -> Problem:
    """The refusal of a request that is too long to be looked up in a recording."""
    return Problem(
        413,
        "request_too_large",
        f"the request's body is longer than {limit} bytes, the limit for lookups in a recording:"
        " send less at once, or let requests to its host go live (allowed_hosts)",
    )


class UpstreamFault(str):
    """An error text that carries its Problem. mitmproxy passes the errors of upstream connections on as text only."""

    __slots__ = ("problem",)
    problem: Problem

    def __new__(cls, problem: Problem) -> "UpstreamFault":
        fault = super().__new__(cls, problem.detail)
        fault.problem = problem
        return fault


def upstream_problem(error: str | UpstreamFault) -> Problem:
    """Return the Problem for an error text from mitmproxy."""
    if isinstance(error, UpstreamFault):
        return error.problem
    return Problem(502, "upstream_unreachable", f"the upstream could not be reached: {error}")
