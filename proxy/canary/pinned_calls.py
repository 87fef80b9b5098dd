"""The calls that a canary asks: requests of recordings."""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from calls.keys.key import make_key
from calls.model import Exchange, Request, header
from calls.own_fields import is_own_field
from calls.redaction.redactor import Redactor
from proxy.canary.credentials import with_credentials
from proxy.commands.replay import fetch_recording
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.worker.recordings import load_file
from store.diff.steps import StepReader

_STEP: Final = re.compile(r"(.+)#([1-9]\d{0,6})")

_NOT_SENT: Final = frozenset(("host", "content-length", "connection", "accept-encoding", "transfer-encoding", "expect"))
"""Headers that the client which sends a request again makes itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCall:
    """A call that is asked again and again."""

    name: str
    """As the setting names it, with its step."""

    key: str
    """The key of its request: another request is another pinned call."""

    model: str
    request: Request

    @property
    def pin(self) -> str:
        """What answers are kept under."""
        return f"{self.name} {self.key.removeprefix('sha256:')[:12]}"

    def as_question(self) -> dict[str, Any]:
        """The request for the program that sends it. Credentials are still redacted."""
        request = self.request
        headers = [
            [name, value] for name, value in request.headers if name.lower() not in _NOT_SENT and not is_own_field(name)
        ]
        body = base64.b64encode(request.body.data).decode()
        return {"pin": self.pin, "method": request.method, "url": request.url, "headers": headers, "body": body}


async def load_pinned_calls(
    processes: CommandProcesses, names: Sequence[str], reading: StepReader, redactor: Redactor, directory: Path
) -> list[PinnedCall]:
    """Load the calls. Raises Failure that says which one is missing or cannot be asked again."""
    pinned_calls: list[PinnedCall] = []
    for number, name in enumerate(names):
        match = _STEP.fullmatch(name)
        recording, step = (match[1], int(match[2])) if match else (name, None)
        file = await fetch_recording(processes, recording, directory / f"{number}.rows")
        exchanges = load_file(file, redactor, reading.profiles).exchanges
        if step is not None and step > len(exchanges):
            raise Failure(f"{name}: there is no step {step}, the recording has {len(exchanges)}; see `playhead show`")
        for place, exchange in enumerate(exchanges, 1):
            if step in (None, place):
                pinned_calls += _pinned_call(f"{recording}#{place}", exchange, reading, is_named=step is not None)
    if not pinned_calls:
        raise Failure(
            "there are no pinned calls: name recordings with calls of models in `calls` of a [[canary]] in playhead.toml,"
            ' such as calls = ["tests/recordings/agent.jsonl", "ticket-904#3"]'
        )
    require_one_origin(pinned_calls)
    return pinned_calls


def require_one_origin(pinned_calls: Sequence[PinnedCall]) -> None:
    """Raise Failure if the key would be sent to more than one origin.

    Who may record into a pinned run can add a call to it. Its host must not be given the key of another one.
    """
    first_calls: dict[str, str] = {}
    for one in pinned_calls:
        request = one.request
        if with_credentials(request.headers, request.url, "key") != with_credentials(
            request.headers, request.url, None
        ):
            first_calls.setdefault("{0.scheme}://{0.netloc}".format(urlsplit(request.url)), one.name)
    if len(first_calls) > 1:
        places = ", ".join(f"{origin} ({name})" for origin, name in first_calls.items())
        raise Failure(
            f"nothing was asked: the key of the canary would be sent to more than one host, {places}. Name the calls of one"
            " host in `calls`, each with its #STEP, and make a canary of its own, with a key of its own, for another host"
        )


def _pinned_call(name: str, exchange: Exchange, reading: StepReader, *, is_named: bool) -> list[PinnedCall]:
    key = make_key(exchange.request, reading.profiles)
    if key.kind != "model" or exchange.response is None or exchange.response.status >= 300:
        if is_named:
            raise Failure(
                f"{name} is not a call of a model that was answered: pin one that is (`playhead show` lists them)"
            )
        return []
    if exchange.request.body.truncated:
        raise Failure(f"{name} cannot be asked again: its body was not recorded whole")
    if header(exchange.request.headers, "x-amz-date") is not None:
        raise Failure(f"{name} cannot be asked again: it is signed for AWS, and Playhead has no credentials to sign it")
    call = reading.derive_call(exchange, key)
    return [PinnedCall(name=name, key=key.key, model=call.model_requested or "", request=exchange.request)]
