"""Set up what a worker answers from: the recordings it was given, and those it fetches on demand."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from calls.keys.profile import Profiles
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.run_names import file_of
from proxy.wire.config import EngineConfig
from proxy.worker.auto_sessions import AutoSessions
from proxy.worker.recordings import Fetch, from_file, from_store
from proxy.worker.replay_reports import ReplayReports
from proxy.worker_config import WorkerConfig
from replay.pacing import parse as pace
from replay.replay_options import dressed, served
from replay.replays import Load, Replays, Source, Unusable
from replay.session import Options
from store.bundle.bundle import Bundle


async def replays(
    told: WorkerConfig,
    config: EngineConfig,
    redactor: Redactor,
    profiles: Profiles,
    notes: ReplayReports,
    takes: AutoSessions | None,
) -> Replays:
    """All that this worker answers from. Raises Failure where it cannot."""
    wishes, options = told.replay_options, _options(told, config)
    fetch = from_store(told.api, told.api_token) if told.api else None

    if not wishes.get("report"):
        notes.inherit()
    made = Replays(
        redactor=redactor,
        profiles=profiles,
        options=options,
        load=fetch and _loading(fetch, options, redactor, profiles, takes),
        changed=notes.changed,
        begin=notes.begin,
        run_mode=config.run_mode,
        now=asyncio.get_running_loop().time,
    )
    adopt = partial(from_file, redactor=redactor, profiles=profiles)
    found = _different([await _source(name, wishes.get("id"), fetch, adopt) for name in told.replay])
    _reached(options.from_step, found)
    if takes:
        # What the store has begins when it is asked for, and anew when it has ended: as the next generation, where it is one.
        files = [file_of(name) is not None for name in told.replay]
        made.given = tuple(name for name, file in zip(told.replay, files, strict=True) if not file)
        found = [source for source, file in zip(found, files, strict=True) if file]
        takes.all_of = made.given[0] if len(made.given) == 1 and not found else None
    try:
        sources = [dressed(source, wishes, options, profiles, redactor.text) for source in found]
    except Unusable as why:
        where = wishes.get("overrides_file")
        raise Failure(f"{where}: {why}" if where else str(why)) from why
    if takes:
        for source in sources:
            takes.lead(str(source.bundle.run["id"]))
    await made.start(sources)
    return made


def _loading(
    fetch: Fetch, options: Options, redactor: Redactor, profiles: Profiles, takes: AutoSessions | None
) -> Load:
    """How a run is fetched that is first asked for when the worker is open already."""

    async def load(name: str) -> Source | None:
        found = await fetch(name)
        own = served(options, found.wishes) if found.made else options
        if takes and (not found.made or found.records):
            source = takes.begun(name, found, own)
        elif found.bundle is None:
            return None
        else:
            source = Source(replay=name, bundle=found.bundle, options=own)
        return await asyncio.to_thread(dressed, source, found.wishes, own, profiles, redactor.text)

    return load


def _options(told: WorkerConfig, config: EngineConfig) -> Options:
    wishes = told.replay_options
    return Options(
        pace=pace(wishes.get("pace", "instant")),
        on_miss=wishes.get("on_miss", "live" if told.mode == "auto" else "fail"),
        after_last=wishes.get("after_last", "miss"),
        from_step=wishes.get("from_step") or 1,
        allow_unused=wishes.get("allow_unused", False),
        own_mode=config.own_mode,
        listed=wishes.get("listed", False),
        called=wishes.get("called"),
    )


async def _source(name: str, identity: str | None, fetch: Fetch | None, adopt: Callable[[Path], Bundle]) -> Source:
    if fetch is None or file_of(name):
        bundle = await asyncio.to_thread(adopt, Path(name))
    elif (found := (await fetch(name)).bundle) is not None:
        bundle = found
    else:
        raise Failure(f"there is no run {name} here and no file of that name; `playhead ls` lists what was recorded")
    return Source(replay=identity or str(bundle.run["id"]), bundle=bundle)


def _different(sources: Sequence[Source]) -> Sequence[Source]:
    """The sources, each of another run. Raises Failure."""
    names = [source.replay for source in sources]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Failure(f"run {twice} was given twice; name each recording once")
    return sources


def _reached(from_step: int, sources: Sequence[Source]) -> None:
    """Raise Failure where a recording ends before the step from which it is to answer."""
    for source in sources:
        if from_step > max(len(source.bundle.entries), 1):
            raise Failure(
                f"run {source.bundle.run['id']} ends at step {len(source.bundle.entries)}, and none is left from step"
                f" {from_step} on; name an earlier one"
            )
