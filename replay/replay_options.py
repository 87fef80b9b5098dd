"""The options of one replay: its pace, what becomes of a request that was not recorded, and what its report says."""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from calls.model import Json
from calls.overrides.overrides import Override
from replay.forks.hooks import EditHook, MissHook
from replay.incoming_request import RepairAdvice
from replay.pacing import INSTANT, Pace
from replay.script import Policy


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one replay."""

    pace: Pace = INSTANT
    on_miss: Literal["fail", "live"] = "fail"
    own_mode: Callable[[str], str | None] = lambda _host: None
    """The mode of a host, if it has its own: in `replay` its unrecorded requests are missed, in `auto` they go live."""

    after_last: Policy = "miss"
    from_step: int = 1
    """Exchanges before this step are not expected."""

    until_step: int | None = None
    """Exchanges after this step neither answer nor are expected."""

    edit_hook: EditHook | None = None
    miss_hook: MissHook | None = None
    """Decides about requests that the recording does not answer, before they are missed or go live."""

    records_answers: bool = False
    """True if the answers become part of a new run."""

    requested: Mapping[str, Json] | None = None
    """The options requested by a client of the API, which the report repeats (`requested`)."""

    effect_overrides: tuple[Override, ...] = ()
    """Other results of effects than those that were recorded."""

    lists_answers: bool = False
    """True if the report lists every exchange that answered (`answered_by`)."""

    allow_unused: bool = False
    candidate: str | None = None
    """The run that records live requests until the auto session ends (store/generations/auto_sessions.py)."""

    recording_name: str | None = None
    """The name of the recording in suggested commands; default: its run."""

    page: str | None = None
    """The address of the store server's web page about the misses of this replay, if one has it."""

    repair_advice: RepairAdvice | None = None
    """Fixes to suggest for a miss instead of `playhead` commands."""
