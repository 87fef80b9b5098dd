"""The two points at which a fork changes a replay: before a recorded answer is given, and where there is none.

A replay without hooks answers from the record or misses. Overrides change what is given at a step (`Edits`); a fork decides
what becomes of a request that its prefix does not answer (`Beyond`).
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from calls.model import Exchange, Json
from replay.answer import Answer
from replay.misses.explain import ReplayedRequest
from replay.pacing import Pace
from replay.script import RecordedExchange, ScriptMatch


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """An answer in place of the recorded one, or of none."""

    answer: Answer
    edited: bool = True
    """False: it is a refusal."""

    again: bool = False
    """The recorded one still stands for whoever asks again."""


class Edits(Protocol):
    """Changes answers."""

    def edited(
        self, asked: ReplayedRequest, recorded: RecordedExchange, exchange: Exchange, pace: Pace, mark: tuple[str, str]
    ) -> HookAnswer | None:
        """Another answer in place of a recorded one; None where that one stands.

        `exchange` is the recorded one in the form that was asked for. It may lack bytes: `recorded.lacking` says so, and an
        edit may answer all the same. `mark` is the header by which the answer says that it is edited.
        """

    def reported(self, report: dict[str, Json]) -> dict[str, Json]:
        """The report with what there is to say about the edits."""

    def rest(self) -> Any:
        """Where it stands, without what can be made again."""

    def go_on(self, rested: Any) -> None:
        """Take up from there."""


class Beyond(Protocol):
    """Decides about requests that the recording does not answer (any more)."""

    def beyond(self, asked: ReplayedRequest, key: str, raw: str) -> "ScriptMatch | HookAnswer | Literal['live'] | None":
        """A recorded exchange from elsewhere that answers, or an answer, or that it goes live; None: it is a miss."""

    def reported(self, report: dict[str, Json]) -> dict[str, Json]:
        """The report with what there is to say about that."""

    def rest(self) -> Any:
        """Where it stands, without what can be made again."""

    def go_on(self, rested: Any) -> None:
        """Take up from there."""
