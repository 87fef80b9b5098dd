"""Apply the options requested for a replay, as JSON from a file, over REST, or from a command line: overrides, a fork.

    {"overrides": [{"step": 2, "text": "…"}, …], "fork": {"at": 3, "effects": ["block"], "allow": ["POST tickets.example.com"]}}

`"options": {"on_miss": "live", "after_last": …, "pace": …, "allow_unused": …, "allowed_hosts": […]}` sets further options.
`at` of null means the last step; with `"offline": true` nothing goes live. The report repeats the requested options for a process that takes over the replay.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec.structs import replace

from calls.keys.profile import Profiles
from calls.overrides.effect_values import EffectValue
from calls.overrides.overrides import BadOverride, clean_entries, read_overrides
from calls.side_effects import BadRule, parse_side_effects
from replay.pacing import parse_pace as pace
from replay.replay_options import ReplayOptions
from replay.replays import ReplaySource, UnusableRecording
from store.bundle.bundle import Bundle

type RequestedOptions = Mapping[str, Any]


def source_as_requested(
    source: ReplaySource,
    requested: RequestedOptions,
    options: ReplayOptions,
    profiles: Profiles,
    redact: Callable[[str], str],
) -> ReplaySource:
    """Apply the requested overrides or fork to a recording. `redact` removes secrets from a text.

    Raises UnusableRecording.
    """
    entries, fork = clean_entries(requested.get("overrides") or [], redact), requested.get("fork")
    options = source.options or options
    if not entries and fork is None:
        return source
    # Few replays are asked for either.
    from replay.forks.fork import BadFork, ForkOptions, prepare_fork
    from replay.overrides.prepare import prepare_overrides

    try:
        overrides = read_overrides(entries, requested.get("lines") or ())
        if fork is None:
            bundle, editor = prepare_overrides(source.bundle, overrides, profiles)
            more: dict[str, Any] = {"edit_hook": editor, "miss_hook": editor}
        else:
            fork_options = ForkOptions(
                at=fork.get("at"),
                effects=parse_side_effects(fork.get("effects") or (), fork.get("allow") or ()),
                is_offline=fork.get("offline", False),
            )
            bundle, more = prepare_fork(source.bundle, overrides, profiles, fork_options, fork=source.replay)
    except (BadOverride, BadRule, BadFork) as why:
        raise UnusableRecording(str(why)) from why
    effects = tuple(one for one in overrides if isinstance(one.change, EffectValue))
    if effects and not source.bundle.effects:
        raise UnusableRecording(
            str(
                effects[0].error(
                    f"run {source.bundle.run['id']} has no effects: record it with playhead record --effects"
                )
            )
        )
    more["effect_overrides"] = effects
    more["requested"] = {**requested, "overrides": entries, "fork": fork}
    return replace(source, bundle=bundle, recording=None, options=replace(options, **more))


def rejection_reason(
    bundle: Bundle, requested: RequestedOptions, profiles: Profiles, redact: Callable[[str], str], name: str
) -> str | None:
    """A sentence that says why the requested options cannot be applied; None if they can.

    The store server checks this when a replay is created.
    """
    try:
        source_as_requested(ReplaySource(replay=name, bundle=bundle), requested, ReplayOptions(), profiles, redact)
    except UnusableRecording as why:
        return str(why)
    return None


def options_as_requested(options: ReplayOptions, requested: RequestedOptions) -> ReplayOptions:
    """The options of a replay created over REST: it never goes live unless that was requested."""
    values = requested.get("options") or {}
    allowed = frozenset(values.get("allowed_hosts", ()))
    return replace(
        options,
        on_miss="fail" if values.get("on_miss", "fail") == "fail" else "live",
        after_last=values.get("after_last", options.after_last),
        pace=pace(values["pace"]) if "pace" in values else options.pace,
        allow_unused=values.get("allow_unused", options.allow_unused),
        own_mode=lambda host: "passthrough" if is_host_listed(allowed, host) else options.own_mode(host),
        requested=requested,
    )


def is_host_listed(hosts: Collection[str], host: str) -> bool:
    """Whether a host is listed by name or by a `*.` wildcard."""
    host = host.lower()
    above = (f"*.{host.split('.', cut)[-1]}" for cut in range(1, host.count(".") + 1))
    return any(name in hosts for name in (host, *above))
