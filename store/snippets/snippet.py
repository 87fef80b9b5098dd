"""Copy a recorded exchange in one of the forms that `GET /v1/calls/{call}/snippet` and `playhead show --as` offer."""

import re
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import msgspec
from msgspec.structs import asdict

from calls.model import Exchange
from store.snippets.curl import write_curl
from store.snippets.one_step import write_step
from store.snippets.python_code import write_pytest, write_python
from store.snippets.secret_variables import SecretVariables
from store.snippets.sent_request import NotCopyable, SentRequest, read_sent_request

type SnippetForm = Literal["curl", "python", "pytest", "jsonl", "har", "vcr"]

FORMS: Final[tuple[SnippetForm, ...]] = get_args(SnippetForm.__value__)

_SUFFIXES: Final = {"curl": "sh", "python": "py", "pytest": "py", "jsonl": "jsonl", "har": "har", "vcr": "yaml"}


class CopiedCall(msgspec.Struct, frozen=True, kw_only=True):
    """The call to copy, and its exchange."""

    exchange: Exchange
    run: str
    step: int
    provider: str
    streamed: bool
    profiles: str
    """The digest of the profiles in force."""


class CallCopy(msgspec.Struct, frozen=True, kw_only=True):
    """A copied exchange."""

    form: SnippetForm
    file: str
    """A name to save it under."""

    text: str
    variables: list[str] = msgspec.field(default_factory=list)
    """The environment variables that stand for secrets."""

    notes: list[str] = msgspec.field(default_factory=list)
    """How it differs from what was sent, and what it needs."""

    def as_json(self) -> dict[str, Any]:
        """Return the snippet as JSON."""
        members = asdict(self)
        return {"as": members.pop("form"), **members}


def make_snippet(copied: CopiedCall, form: SnippetForm) -> CallCopy:
    """Copy a call in a form. Raises NotCopyable with the reason why this form cannot hold it."""
    stem = file_stem(copied)
    variables = SecretVariables(copied.provider)
    if form in ("jsonl", "har", "vcr"):
        text = write_step(copied.exchange, form, variables, run=stem, profiles=copied.profiles)
        names = variables.names
        notes = [f"secrets are the names of variables in it: {', '.join(names)}"] if names else []
        return CallCopy(form=form, file=f"{stem}.{_SUFFIXES[form]}", text=text, variables=names, notes=notes)
    request = read_sent_request(copied.exchange.request, variables, is_streamed=copied.streamed)
    text = _WRITERS[form](copied, request)
    notes = [*request.notes, *_needs(copied, form)]
    if names := variables.names:
        notes.append(f"set {', '.join(names)}: the recording holds no secrets")
    prefix = "test_" if form == "pytest" else ""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", stem) if form != "curl" else stem
    return CallCopy(
        form=form,
        file=f"{prefix}{name}.{_SUFFIXES[form]}",
        text=text,
        variables=names,
        notes=list(dict.fromkeys(notes)),
    )


def file_stem(copied: CopiedCall) -> str:
    """Return a name for the step, of characters that every file system allows."""
    run = re.sub(r"[^A-Za-z0-9._-]+", "-", copied.run).strip(".-") or "run"
    return f"{run[:80]}-step-{copied.step}"


def _recording_file(copied: CopiedCall) -> str:
    return f"recordings/{file_stem(copied)}.jsonl"


def _write_test(copied: CopiedCall, request: SentRequest) -> str:
    response = copied.exchange.response
    name = re.sub(r"[^A-Za-z0-9_]+", "_", f"test_step_{copied.step}_of_{copied.run[:60]}").strip("_").lower()
    return write_pytest(
        request, name=name, recording=_recording_file(copied), status=response.status if response else None
    )


_WRITERS: Final[dict[str, Callable[[CopiedCall, SentRequest], str]]] = {
    "curl": lambda _, request: write_curl(request),
    "python": lambda _, request: write_python(request),
    "pytest": _write_test,
}


def _needs(copied: CopiedCall, form: SnippetForm) -> list[str]:
    """Return what a program needs to run."""
    match form:
        case "python":
            return ["it needs httpx: pip install httpx"]
        case "pytest":
            file = _recording_file(copied)
            return [f"it needs httpx, the plugin pytest-playhead, and this step as {file} beside it (as=jsonl)"]
        case _:
            return []


__all__ = ["FORMS", "CallCopy", "CopiedCall", "NotCopyable", "SnippetForm", "file_stem", "make_snippet"]
