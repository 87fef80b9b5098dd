"""The ids of traces and spans: digests of the ids of runs and calls, so that every export of a run has the same ones."""

import hashlib
import json
from typing import NamedTuple


class TraceIds(NamedTuple):
    """The ids of a run's trace and of its root span."""

    trace: bytes
    root: bytes


def trace_ids(project: str, run: str, incarnation: str) -> TraceIds:
    """Derive the ids of a run's trace. A run that was deleted and recorded again under its name is another trace."""
    trace = _digest("trace", project, run, incarnation)[:16]
    return TraceIds(trace, _digest("root", trace.hex())[:8])


def call_span_id(trace: bytes, call: str) -> bytes:
    """Derive the id of a call's span."""
    return _digest("call", trace.hex(), call)[:8]


def target_id(endpoint: str, project: str | None) -> str:
    """Derive the id of a target, under which its position in the feed is stored."""
    return _digest("target", endpoint, project or "").hex()[:16]


def _digest(*parts: str) -> bytes:
    return hashlib.sha256(json.dumps(["playhead/otlp/1", *parts]).encode()).digest()
