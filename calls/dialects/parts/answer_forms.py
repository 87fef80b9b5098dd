"""Determine whether a request asks for a streamed answer, and in which form."""

from collections.abc import Callable
from typing import Literal

import msgspec

from calls.codec.lenient_json import as_object
from calls.model import Json

type AnswerForm = Literal["whole", "sse", "array", "ndjson", "eventstream"]


class FormCriteria(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request can determine the form of its answer."""

    body: Json
    operation: str
    streams: bool | None
    """Whether the path asks for a stream; None where it does not determine it."""
    query: str


def streamed_if_requested(form: AnswerForm) -> Callable[[FormCriteria], AnswerForm]:
    """Stream in this form where the body has `"stream": true`, or where the path asks for a stream."""

    def choose_form(criteria: FormCriteria) -> AnswerForm:
        requested = as_object(criteria.body).get("stream") is True or criteria.streams
        return form if requested else "whole"

    return choose_form


def streamed_by_path(form: AnswerForm) -> Callable[[FormCriteria], AnswerForm]:
    """Stream in this form where the path asks for a stream, whatever the body has."""
    return lambda criteria: form if criteria.streams else "whole"


def never_streamed(_criteria: FormCriteria) -> AnswerForm:
    """Answer whole: this API has no streams."""
    return "whole"
