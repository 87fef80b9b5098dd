"""Make error bodies in the shapes that several dialects share."""

from collections.abc import Mapping
from typing import Final, Literal

from calls.model import Json

type ErrorClass = Literal["invalid", "authentication", "permission", "not_found", "rate_limit", "overloaded", "server"]


_CLASSES: Final[Mapping[int, ErrorClass]] = {
    401: "authentication",
    403: "permission",
    404: "not_found",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",  # Anthropic's
}


def error_class(status: int) -> ErrorClass:
    """The class of an error by its HTTP status."""
    return _CLASSES.get(status, "server" if status >= 500 else "invalid")


def plain_error(status: int, message: str) -> Json:
    """An error for an API whose own shape is not known."""
    return {"error": {"message": message, "status": status}}


def openai_error(status: int, message: str) -> Json:
    """An error of OpenAI's APIs."""
    code = "rate_limit_exceeded" if status == 429 else None
    found = error_class(status)
    kind = "invalid_request" if found in ("invalid", "authentication", "permission", "not_found") else found
    return {"error": {"message": message, "type": f"{kind}_error", "param": None, "code": code}}


def message_error(_status: int, message: str) -> Json:
    """An error that is only a message: AWS, Cohere."""
    return {"message": message}
