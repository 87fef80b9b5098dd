"""Set up the replays that a worker answers from: the configured recordings, and those that it fetches on demand."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from calls.keys.profile import Profiles
from calls.project_runs import full_run_name
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.run_names import recording_path
from proxy.wire.config import EngineConfig
from proxy.worker.auto_sessions import AutoSessions
from proxy.worker.recordings import Fetch, FoundRecording, load_file
from proxy.worker.replay_reports import ReplayReports
from proxy.worker_config import WorkerConfig
from replay.pacing import parse_pace
from replay.recording import ReportProgress
from replay.replay_options import ReplayOptions
from replay.replays import LoadSource, Replays, ReplaySource, UnusableRecording
from replay.requested_options import options_as_requested, source_as_requested
from store.bundle.bundle import Bundle
from store.datadir import DataDir

if TYPE_CHECKING:
    # A worker that replays a file imports none of this.
    from proxy.worker.preloaded_recordings import PreloadedRecordings


def set_up_preloading(config: WorkerConfig, profiles: Profiles) -> "PreloadedRecordings | None":
    """Set up what loads recordings ahead, where the store server of this `up` says which runs have changed."""
    if config.api is None or config.preload_secret is None or config.run_versions is None:
        return None
    from proxy.worker.preloaded_recordings import PreloadedRecordings
    from proxy.worker.run_versions import SharedVersions, StoredVersions, VersionReader
    from proxy.worker.stored_recordings import preloader, run_lister, store_loader

    versions: VersionReader
    versions = SharedVersions(Path(config.run_versions))
    if config.versions_socket is not None:
        versions = StoredVersions(Path(config.versions_socket), config.project, versions.announced_replays)
    return PreloadedRecordings(
        # In mode auto, a session answers from another recording if its run is flawed.
        fetch=store_loader(config.api, config.api_token, profiles if config.mode == "replay" else None),
        fetch_many=preloader(config.api, config.api_token, config.preload_secret),
        list_runs=run_lister(
            config.api, config.api_token, config.project, only_ended=config.versions_socket is not None
        ),
        profiles=profiles,
        versions=versions,
        replays_directory=DataDir(Path(config.data)).replays,
    )


async def set_up_replays(
    config: WorkerConfig,
    engine_config: EngineConfig,
    redactor: Redactor,
    profiles: Profiles,
    reports: ReplayReports,
    auto_sessions: AutoSessions | None,
    preloaded: "PreloadedRecordings | None" = None,
    report_progress: ReportProgress | None = None,
) -> Replays:
    """Set up and start the replays of a worker. Raises Failure."""
    options = _session_options(config, engine_config)
    fetch = _choose_fetch(config, preloaded)
    if not config.replay_options.get("report"):
        reports.report_interrupted_replays()
    replays = Replays(
        redactor=redactor,
        profiles=profiles,
        options=options,
        load=fetch and _source_loader(fetch, options, redactor, profiles, auto_sessions),
        on_change=reports.mark_changed,
        may_begin=reports.begin,
        forget_begin=reports.forget,
        run_mode=engine_config.run_mode,
        now=asyncio.get_running_loop().time,
    )
    adopt = partial(load_file, redactor=redactor, profiles=profiles, report_progress=report_progress)
    found = _require_distinct_runs([await _load_source(name, config, fetch, adopt) for name in config.replay])
    _require_step(options.from_step, found)
    if auto_sessions:
        found = _leave_stored_runs_to_requests(config, found, replays, auto_sessions)
    if preloaded:
        preloaded.is_replaying = replays.has_begun
        if not auto_sessions:
            # In mode auto, most runs that clients name are new.
            replays.expect = preloaded.expect
            replays.likely_source = _likely_source(preloaded, options)
    sources = _edit_sources(config, found, options, redactor, profiles)
    if auto_sessions:
        for source in sources:
            auto_sessions.record_as_candidate(full_run_name(config.project, str(source.bundle.run["id"])))
    await replays.start(sources, report_progress)
    return replays


def _choose_fetch(config: WorkerConfig, preloaded: "PreloadedRecordings | None") -> Fetch | None:
    """Return what fetches recordings from the store server; None without one."""
    if not config.api:
        return None
    if preloaded:
        return preloaded.fetch_or_take
    from proxy.worker.stored_recordings import store_loader

    return store_loader(config.api, config.api_token)


def _leave_stored_runs_to_requests(
    config: WorkerConfig, found: Sequence[ReplaySource], replays: Replays, auto_sessions: AutoSessions
) -> Sequence[ReplaySource]:
    """Return the sources from files. A session of a run in the store begins with its first request, and again, with the newest
    generation, after its end."""
    files = [recording_path(name) is not None for name in config.replay]
    stored = [name for name, is_file in zip(config.replay, files, strict=True) if not is_file]
    replays.startup_recordings = tuple(full_run_name(config.project, name) for name in stored)
    is_only_run = len(config.replay) == len(stored) == 1
    auto_sessions.run_of_all_requests = replays.startup_recordings[0] if is_only_run else None
    return [source for source, is_file in zip(found, files, strict=True) if is_file]


def _edit_sources(
    config: WorkerConfig,
    found: Sequence[ReplaySource],
    options: ReplayOptions,
    redactor: Redactor,
    profiles: Profiles,
) -> list[ReplaySource]:
    """Apply the requested options and overrides. Raises Failure if an override does not suit its recording."""
    replay_options = config.replay_options
    try:
        return [
            source_as_requested(source, replay_options, options, profiles, redactor.redact_text) for source in found
        ]
    except UnusableRecording as why:
        where = replay_options.get("overrides_file")
        raise Failure(f"{where}: {why}" if where else str(why)) from why


def _source_loader(
    fetch: Fetch, options: ReplayOptions, redactor: Redactor, profiles: Profiles, auto_sessions: AutoSessions | None
) -> LoadSource:
    """Return a loader of recordings that are requested while the worker runs."""

    def load(name: str) -> Awaitable[ReplaySource | None]:
        return make_source(name, fetch(name))

    async def make_source(name: str, fetched: Awaitable[FoundRecording]) -> ReplaySource | None:
        found = await fetched
        own = options_as_requested(options, found.replay_options) if found.is_replay else options
        source: ReplaySource | None
        if auto_sessions and (not found.is_replay or found.records_misses):
            source = auto_sessions.begin_session(name, found, own)
        else:
            source = _plain_source(name, found, options)
            if source is None or not found.is_edited:
                return source
        return await asyncio.to_thread(
            source_as_requested, source, found.replay_options, own, profiles, redactor.redact_text
        )

    return load


def _likely_source(preloaded: "PreloadedRecordings", options: ReplayOptions) -> Callable[[str], ReplaySource | None]:
    """Return what says which recording was loaded ahead under a name."""

    def find(name: str) -> ReplaySource | None:
        found = preloaded.loaded_recording(name)
        return None if found is None or found.is_edited else _plain_source(name, found, options)

    return find


def _plain_source(name: str, found: FoundRecording, options: ReplayOptions) -> ReplaySource | None:
    """Return what answers requests of a name without edits; None if there is no recording."""
    if found.bundle is None:
        return None
    own = options_as_requested(options, found.replay_options) if found.is_replay else options
    return ReplaySource(replay=name, bundle=found.bundle, options=own, recording=found.recording)


def _session_options(config: WorkerConfig, engine_config: EngineConfig) -> ReplayOptions:
    replay_options = config.replay_options
    return ReplayOptions(
        pace=parse_pace(replay_options.get("pace", "instant")),
        on_miss=replay_options.get("on_miss", "live" if config.mode == "auto" else "fail"),
        after_last=replay_options.get("after_last", "miss"),
        from_step=replay_options.get("from_step") or 1,
        allow_unused=replay_options.get("allow_unused", False),
        own_mode=engine_config.own_mode,
        lists_answers=replay_options.get("listed", False),
        recording_name=replay_options.get("called"),
        page=config.page,
    )


async def _load_source(
    name: str, config: WorkerConfig, fetch: Fetch | None, adopt: Callable[[Path], Bundle]
) -> ReplaySource:
    if fetch is None or recording_path(name):
        bundle = await asyncio.to_thread(adopt, Path(name))
    elif (found := (await fetch(full_run_name(config.project, name))).bundle) is not None:
        bundle = found
    else:
        raise Failure(f"there is no run {name} here and no file of that name; `playhead ls` lists what was recorded")
    replay = config.replay_options.get("id") or str(bundle.run["id"])
    return ReplaySource(replay=full_run_name(config.project, replay), bundle=bundle)


def _require_distinct_runs(sources: Sequence[ReplaySource]) -> Sequence[ReplaySource]:
    """Return the sources. Raises Failure if two of them are of the same run."""
    names = [source.replay for source in sources]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Failure(f"run {twice} was given twice; name each recording once")
    return sources


def _require_step(from_step: int, sources: Sequence[ReplaySource]) -> None:
    """Raise Failure if a recording ends before the step at which the replay begins."""
    for source in sources:
        if from_step > max(len(source.bundle.entries), 1):
            raise Failure(
                f"run {source.bundle.run['id']} ends at step {len(source.bundle.entries)}, so it has no step {from_step}:"
                " choose an earlier one"
            )
