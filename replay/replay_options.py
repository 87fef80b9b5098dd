"""The options of a replay beyond the record, in JSON (overrides, a fork): from a file, over REST, or from a command line.

    {"overrides": [{"step": 2, "text": "…"}, …], "fork": {"at": 3, "effects": ["block"], "allow": ["POST tickets.example.com"]}}

With `"options": {"on_miss": "live", "after_last": …, "pace": …, "allow_unused": …, "allowed_hosts": […]}` it answers so.
`at` of null is the last step. What is wished for is told in the report, so that whoever takes over a replay knows it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from calls.effects import BadRule, effects
from calls.keys.profile import Profiles
from calls.model import Json
from calls.overrides.overrides import BadOverride, cleaned, listed
from replay.forks.fork import BadFork, ForkOptions, forked
from replay.overrides.prepare import prepared
from replay.pacing import parse as pace
from replay.replays import Source, Unusable
from replay.session import Options
from store.bundle.bundle import Bundle

type Wishes = Mapping[str, Any]


def dressed(
    source: Source, wishes: Wishes, options: Options, profiles: Profiles, clean: Callable[[str], str]
) -> Source:
    """The recording as it is wished for. Raises Unusable where that cannot be. `clean` takes secrets out of a text."""
    entries, fork = cleaned(wishes.get("overrides") or [], clean), wishes.get("fork")
    options = source.options or options
    if not entries and fork is None:
        return source
    try:
        overrides = listed(entries, wishes.get("lines") or ())
        if fork is None:
            bundle, editor = prepared(source.bundle, overrides, profiles)
            more: dict[str, Any] = {"edits": editor, "beyond": editor}
        else:
            wanted = ForkOptions(at=fork.get("at"), effects=effects(fork.get("effects") or (), fork.get("allow") or ()))
            bundle, more = forked(source.bundle, overrides, profiles, wanted, fork=source.replay)
    except (BadOverride, BadRule, BadFork) as why:
        raise Unusable(str(why)) from why
    more["wishes"] = {**wishes, "overrides": entries, "fork": fork}
    return replace(source, bundle=bundle, options=replace(options, **more))


def unfit(bundle: Bundle, wishes: Wishes, profiles: Profiles, clean: Callable[[str], str], name: str) -> str | None:
    """Why a replay of this recording cannot be as it is wished for; None where it can. The store server asks it
    (`checks` in store/__main__.py) before anybody waits for an answer."""
    try:
        dressed(Source(replay=name, bundle=bundle), wishes, Options(), profiles, clean)
    except Unusable as why:
        return str(why)
    return None


def served(options: Options, wishes: Wishes) -> Options:
    """How a replay that somebody made over REST answers: from the record alone, but for what was wished for."""
    asked = wishes.get("options") or {}
    allowed = frozenset(asked.get("allowed_hosts", ()))
    return replace(
        options,
        on_miss="fail" if asked.get("on_miss", "fail") == "fail" else "live",
        after_last=asked.get("after_last", options.after_last),
        pace=pace(asked["pace"]) if "pace" in asked else options.pace,
        allow_unused=asked.get("allow_unused", options.allow_unused),
        own_mode=lambda host: "passthrough" if covers(allowed, host) else options.own_mode(host),
        wishes=wishes,
    )


def covers(hosts: Collection[str], host: str) -> bool:
    """Whether a host is one of these, by its name or as one below a `*.name`."""
    host = host.lower()
    above = (f"*.{host.split('.', cut)[-1]}" for cut in range(1, host.count(".") + 1))
    return any(name in hosts for name in (host, *above))


def wished(report: Mapping[str, Json]) -> Wishes:
    """What was wished for of a replay, as its report tells it."""
    told = report.get("wishes")
    return told if isinstance(told, Mapping) else {}
