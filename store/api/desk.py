"""What the routes work with, and how they get at it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from calls.model import Call, Exchange
from calls.profile import Profiles
from calls.redact_call import Clean
from store.bundle import Bundle
from store.database import Database
from store.derived import deriver
from store.keeper import Keeper
from store.modes import Modes
from store.pulse import Pulse
from store.recorded import Recorded
from store.runs import Runs
from store.takes import Takes

type Unfit = Callable[[Bundle, Mapping[str, Any], Profiles, Clean, str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """One keeper's things, as the routes see them."""

    keeper: Keeper
    database: Database
    profiles: Profiles
    clean: Clean
    """Takes secrets out of a text."""

    mode: str = "record"
    """What the doors of this `up` do: record, replay, auto or passthrough."""

    takes: Takes | None = None
    """What runs do while doors are in mode `auto`."""

    pulse: Pulse = field(default_factory=Pulse)
    modes: Modes | None = None
    """Of runs that have one of their own."""

    unfit: Unfit | None = None
    """Why a recording cannot be edited or forked as it is wished for."""

    now: Callable[[], int] = time.time_ns

    @property
    def runs(self) -> Runs:
        """The runs."""
        return Runs(self.database)

    @property
    def recorded(self) -> Recorded:
        """Exchanges and calls."""
        return Recorded(self.database, self.derive)

    @property
    def derive(self) -> Callable[[Exchange], Call]:
        """From an exchange to its call, under the profiles in force."""
        return deriver(self.profiles, self.clean)


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


type TheDesk = Annotated[Desk, Depends(_desk)]
