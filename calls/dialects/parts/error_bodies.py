"""Make error bodies in the shapes that several dialects share."""

from typing import Literal

from calls.model import Json

type ErrorClass = Literal["rate_limit", "overloaded", "server"]


def error_class(status: int) -> ErrorClass:
    """The class of an error by its HTTP status; 529 is Anthropic's status for overload."""
    return "rate_limit" if status == 429 else "overloaded" if status in (503, 529) else "server"


def plain_error(status: int, message: str) -> Json:
    """An error for an API whose own shape is not known."""
    return {"error": {"message": message, "status": status}}


def openai_error(status: int, message: str) -> Json:
    """An error of OpenAI's APIs."""
    code = "rate_limit_exceeded" if status == 429 else None
    return {"error": {"message": message, "type": f"{error_class(status)}_error", "param": None, "code": code}}


def message_error(_status: int, message: str) -> Json:
    """An error that is only a message: AWS, Cohere."""
    return {"message": message}
