"""Define the two hooks of a replay: one before a recorded answer is served, and one when there is none.

A replay without hooks answers from the record or misses. Overrides change recorded answers (`EditHook`); a fork decides
about requests that its prefix does not answer (`MissHook`).
"""

from typing import Any, Literal, Protocol

import msgspec

from calls.model import Exchange, Json
from replay.answer import Answer
from replay.incoming_request import IncomingRequest
from replay.pacing import Pace
from replay.script import RecordedExchange, ScriptMatch


class HookAnswer(msgspec.Struct, frozen=True):
    """An answer in place of a recorded one or of a miss."""

    answer: Answer
    is_edit: bool = True
    """False for a refusal."""

    keeps_recorded: bool = False
    """True if the recorded answer stays for the next request."""


class EditHook(Protocol):
    """Edits recorded answers."""

    def edit_answer(
        self,
        incoming: IncomingRequest,
        recorded: RecordedExchange,
        exchange: Exchange,
        pace: Pace,
        source_header: tuple[str, str],
    ) -> HookAnswer | None:
        """Return an answer in place of a recorded one, or None to serve the recorded one.

        `exchange` is the recorded exchange in the requested form. It may be incomplete (`recorded.unreplayable_reason`), and
        an edit may still answer. `source_header` is the header that marks the answer as edited.
        """

    def extend_report(self, report: dict[str, Json]) -> dict[str, Json]:
        """Add the edits to a report."""

    def saved_state(self) -> Any:
        """The state to keep while the replay is suspended."""

    def restore_state(self, state: Any) -> None:
        """Restore a saved state."""


class MissHook(Protocol):
    """Decides about requests that the recording does not answer."""

    def answer_miss(
        self, incoming: IncomingRequest, key: str, raw: str
    ) -> "ScriptMatch | HookAnswer | Literal['live'] | None":
        """Return a recorded exchange from elsewhere, an answer, or `live` to send the request on; None for a miss."""

    def extend_report(self, report: dict[str, Json]) -> dict[str, Json]:
        """Add the hook's decisions to a report."""

    def saved_state(self) -> Any:
        """The state to keep while the replay is suspended."""

    def restore_state(self, state: Any) -> None:
        """Restore a saved state."""
