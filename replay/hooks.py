"""Where a fork takes part in a replay: before a recorded answer is given, and where the recording has none.

A replay without hooks answers from the record or misses. Overrides change what is given at a step (`Edits`); a fork decides
what becomes of a request that its prefix does not answer (`Beyond`).
"""

from typing import Protocol

from calls.model import Exchange
from replay.answer import Answer
from replay.explain import Asked
from replay.miss import Miss
from replay.pacing import Pace
from replay.script import Recorded, Taken


class Edits(Protocol):
    """Changes answers."""

    def edited(
        self, asked: Asked, recorded: Recorded, exchange: Exchange, pace: Pace, mark: tuple[str, str]
    ) -> Answer | None:
        """Another answer in place of a recorded one; None where that one stands.

        `exchange` is the recorded one in the form that was asked for. It may lack bytes: `recorded.lacking` says so, and an
        edit may answer all the same. `mark` is the header by which the answer says that it is edited.
        """


class Beyond(Protocol):
    """Decides about requests that the recording does not answer (any more)."""

    def beyond(self, asked: Asked, key: str, raw: str) -> Taken | Miss | None:
        """A recorded exchange from elsewhere that answers, or a refusal, or None: it goes live."""
