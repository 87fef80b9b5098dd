"""The envelope of a run: what moves between one run and the next, and what of it was captured.

For each thing the envelope has the values that were seen with their steps, and a sentence for whatever is missing. It names no content
of prompts or answers.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from calls.model import Call, Exchange, header

SAMPLING: Final = (
    *(
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "n",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ),
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "reasoning_effort", "service_tier"),
)
"""Parameters of requests that decide how a model samples."""

CLIENT_HEADERS: Final = (
    *(
        "user-agent",
        "x-stainless-lang",
        "x-stainless-package-version",
        "x-stainless-runtime",
        "x-stainless-runtime-version",
    ),
    *("x-stainless-os", "x-goog-api-client"),
)
"""Request headers with which client libraries name themselves and their environment."""

CODE_LABELS: Final = ("git", "git-dirty", "commit", "release", "version")
"""Labels of a run that name the version of the agent's code."""

MOST_VALUES: Final = 50
MOST_STEPS: Final = 20
"""Values of one thing, and steps of one value, that are listed; the rest is counted."""

LONGEST_VALUE: Final = 300


AT_PROVIDER: Final = ("previous_response_id", "conversation", "thread_id", "cachedContent")
"""Members of requests that stand for turns that the provider keeps, and the request does not have."""

_NESTED: Final = ("generationConfig", "inferenceConfig", "options", "reasoning")
_OTHER_NAMES: Final = {"effort": "reasoning_effort", "num_predict": "max_tokens"}
_CAPITAL: Final = re.compile(r"(?<=[a-z])([A-Z])")


def sampling_parameters(call: Call) -> dict[str, str]:
    """Return the parameters of a call that decide how its model samples, by their names in `SAMPLING`."""
    request = call.request if isinstance(call.request, Mapping) else {}
    nested = [value for name in _NESTED if isinstance(value := request.get(name), Mapping)]
    found: dict[str, str] = {}
    for members in (call.params, request, *nested):
        for name, value in members.items():
            plain = _CAPITAL.sub(lambda match: f"_{match[1].lower()}", name)
            plain = _OTHER_NAMES.get(plain, plain)
            if plain in SAMPLING and isinstance(value, str | int | float | Decimal):
                found.setdefault(plain, str(value)[:LONGEST_VALUE])
    return {name: found[name] for name in SAMPLING if name in found}


@dataclass(slots=True)
class _Values:
    """The values of one thing that were seen, with their steps."""

    steps: dict[str, list[int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    left_out: int = 0

    def add(self, value: str | None, step: int) -> None:
        """Note a value of a step; None if the step has none."""
        if value is None:
            self.missing.append(step)
            return
        if len(value) > LONGEST_VALUE:
            # The digest keeps values apart that differ behind the cut.
            value = f"{value[:LONGEST_VALUE]}… ({hashlib.sha256(value.encode('utf-8', 'backslashreplace')).hexdigest()[:8]})"
        if value not in self.counts and len(self.counts) == MOST_VALUES:
            self.left_out += 1
            return
        self.counts[value] = self.counts.get(value, 0) + 1
        if len(steps := self.steps.setdefault(value, [])) < MOST_STEPS:
            steps.append(step)

    def as_json(self) -> list[dict[str, Any]]:
        """The values as JSON, in the order in which they were first seen."""
        return [{"value": value, "count": self.counts[value], "steps": steps} for value, steps in self.steps.items()]


@dataclass(slots=True)
class EnvelopeBuilder:
    """Builds the envelope of a run from its exchanges and calls, added in step order."""

    _models: _Values = field(default_factory=_Values)
    _fingerprints: _Values = field(default_factory=_Values)
    _sampling: _Values = field(default_factory=_Values)
    _seeds: _Values = field(default_factory=_Values)
    _prompts: _Values = field(default_factory=_Values)
    _retrievals: _Values = field(default_factory=_Values)
    _tools: _Values = field(default_factory=_Values)
    _returned_results: _Values = field(default_factory=_Values)
    _clients: _Values = field(default_factory=_Values)
    _cut: list[int] = field(default_factory=list)
    _redacted: list[int] = field(default_factory=list)
    _unnamed: list[int] = field(default_factory=list)
    _at_provider: list[int] = field(default_factory=list)
    _untimed: list[int] = field(default_factory=list)
    _first: int | None = None
    _last: int | None = None
    _steps: int = 0
    _model_steps: int = 0

    def add(self, step: int, exchange: Exchange, call: Call | None) -> None:
        """Add an exchange and its call; None if no call could be derived from it."""
        self._steps += 1
        self._add_times(step, exchange)
        self._add_client(step, exchange)
        if exchange.is_truncated:
            self._cut.append(step)
        if exchange.redactions:
            self._redacted.append(step)
        if call is None:
            return
        if call.tool_results:
            self._returned_results.add("tool results in the request", step)
        match call.kind:
            case "model":
                self._add_model(step, exchange, call)
            case "retrieval":
                self._retrievals.add(f"{call.provider} {call.operation}", step)
            case "tool":
                self._tools.add(f"{call.provider} {call.operation}", step)

    def _add_model(self, step: int, exchange: Exchange, call: Call) -> None:
        self._model_steps += 1
        requested_model, returned_model = call.model_requested, call.model_returned
        self._models.add(
            f"{requested_model or '(none)'} → {returned_model or '(none)'}"
            if requested_model or returned_model
            else None,
            step,
        )
        if returned_model is None:
            self._unnamed.append(step)
        self._fingerprints.add(call.system_fingerprint, step)
        sampling = sampling_parameters(call)
        self._sampling.add(", ".join(f"{name}={value}" for name, value in sampling.items()) or None, step)
        self._seeds.add(sampling.get("seed"), step)
        is_whole = not exchange.request.body.truncated and call.request is not None
        self._prompts.add("all bytes of the request" if is_whole else None, step)
        if isinstance(call.request, Mapping) and any(call.request.get(name) for name in AT_PROVIDER):
            self._at_provider.append(step)

    def _add_times(self, step: int, exchange: Exchange) -> None:
        end = exchange.started_at + (exchange.ended_at or 0)
        self._first = exchange.started_at if self._first is None else min(self._first, exchange.started_at)
        self._last = end if self._last is None else max(self._last, end)
        if exchange.ended_at is None or exchange.first_byte_at is None:
            self._untimed.append(step)

    def _add_client(self, step: int, exchange: Exchange) -> None:
        values = ((name, header(exchange.request.headers, name)) for name in CLIENT_HEADERS)
        self._clients.add("; ".join(f"{name}: {value}" for name, value in values if value) or None, step)

    def envelope(self, labels: Mapping[str, str], gaps: int) -> dict[str, Any]:
        """Return the envelope as JSON. Times are nanoseconds since the Unix epoch; `gaps` counts what was not recorded."""
        code = {name: labels[name][:LONGEST_VALUE] for name in CODE_LABELS if name in labels}
        losses = [f"{gaps} exchanges or parts of them passed unrecorded (gaps)"] if gaps else []
        no_models = [] if self._model_steps else ["no model was called"]
        return {
            "steps": self._steps,
            "model": _thing(
                self._models, [*no_models, *_sentence("the name of the model that answered", self._unnamed)]
            ),
            "fingerprint": _thing(
                self._fingerprints, _absent(self._fingerprints, "a fingerprint of the model's configuration")
            ),
            "sampling": _thing(
                self._sampling, [*_absent(self._sampling, "sampling parameters"), *_absent(self._seeds, "a seed")]
            ),
            "prompt": _thing(self._prompts, _absent(self._prompts, "the whole request")),
            "retrieval": _thing(
                self._retrievals, [] if self._retrievals.counts else ["no retrieval was recorded as a call of its own"]
            ),
            "tools": _thing(
                self._tools,
                []
                if self._tools.counts or self._returned_results.counts
                else ["no tool was recorded as a call of its own"],
                {"results_in_requests": self._returned_results.as_json()},
            ),
            "times": {
                "first": self._first,
                "last": self._last,
                "missing": _sentence("the time of the first byte or of the end", self._untimed),
            },
            "conversation": {
                "missing": [
                    *losses,
                    *_sentence("bytes of its bodies", self._cut),
                    *_sentence("the earlier turns, which the provider keeps", self._at_provider),
                    *_sentence("secrets, which were replaced before they were stored", self._redacted),
                ],
            },
            "code": {
                "labels": code,
                "missing": [] if code else ["no label names the version of the code (git, commit, release or version)"],
            },
            "environment": _thing(self._clients, _absent(self._clients, "a header that names its client library")),
        }


def _thing(values: _Values, missing: Iterable[str], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"values": values.as_json(), "missing": list(missing), **(more or {})}
    return found | ({"left_out": values.left_out} if values.left_out else {})


def _absent(values: _Values, what: str) -> list[str]:
    return _sentence(what, values.missing)


def _sentence(what: str, steps: list[int]) -> list[str]:
    if not steps:
        return []
    numbers = ", ".join(map(str, steps[:MOST_STEPS]))
    more = f" and {len(steps) - MOST_STEPS} more" if len(steps) > MOST_STEPS else ""
    return [f"step {numbers} lacks {what}" if len(steps) == 1 else f"steps {numbers}{more} lack {what}"]
