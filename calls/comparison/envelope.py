"""The envelope of a run: what moves between one run and the next, and what of it was captured.

For each thing the envelope has the values that were seen with their steps, and a sentence for whatever is missing. It names no content
of prompts or answers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
        value = value[:LONGEST_VALUE]
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
        returned = call.model_returned
        self._models.add(f"{call.model_requested or '(none)'} → {returned}" if returned else None, step)
        self._fingerprints.add(call.system_fingerprint, step)
        sampling = [f"{name}={call.params[name]}" for name in SAMPLING if call.params.get(name) is not None]
        self._sampling.add(", ".join(sampling) or None, step)
        seed = call.params.get("seed")
        self._seeds.add(None if seed is None else str(seed), step)
        self._prompts.add(None if exchange.request.body.truncated or call.request is None else "whole", step)

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
        code = {name: labels[name] for name in CODE_LABELS if name in labels}
        lost = [f"{gaps} exchanges or parts of them passed unrecorded (gaps)"] if gaps else []
        no_models = [] if self._model_steps else ["no model was called"]
        return {
            "steps": self._steps,
            "model": _thing(self._models, [*no_models, *_absent(self._models, "the model that answered")]),
            "fingerprint": _thing(
                self._fingerprints, _absent(self._fingerprints, "a fingerprint of the model's configuration")
            ),
            "sampling": _thing(
                self._sampling, [*_absent(self._sampling, "sampling parameters"), *_absent(self._seeds, "a seed")]
            ),
            "prompt": _thing(self._prompts, _absent(self._prompts, "the whole request")),
            "retrieval": _thing(
                self._retrievals, [] if self._retrievals.counts else ["no retrieval was seen on the network"]
            ),
            "tools": _thing(
                self._tools,
                [] if self._tools.counts or self._returned_results.counts else ["no tool was called on the network"],
                {"results_in_requests": self._returned_results.as_json()},
            ),
            "times": {
                "first": self._first,
                "last": self._last,
                "missing": _sentence("the time of the first byte or of the end", self._untimed),
            },
            "conversation": {
                "missing": [*lost, *_sentence("all bytes of its bodies", self._cut)],
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
    shown = ", ".join(map(str, steps[:MOST_STEPS]))
    more = f" and {len(steps) - MOST_STEPS} more" if len(steps) > MOST_STEPS else ""
    return [f"step {shown} lacks {what}" if len(steps) == 1 else f"steps {shown}{more} lack {what}"]
