"""One door as a process: `python -m proxy.worker`, told its configuration on stdin (`children`), stopped by its end.

Here the engine, the recorder with its spool, and the replays are put together; none of them knows the others' insides.
"""

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calls.profile import Profiles
from calls.redact import Redactor
from proxy import lane, mitm
from proxy.ca import Authority, ensure
from proxy.counting import Counting, keep, note
from proxy.door import DoorConfig
from proxy.errors import Failure
from proxy.notes import Notes
from proxy.recordings import Fetch, from_file, from_keeper
from proxy.takes import Leading, Takes
from replay.pacing import parse as pace
from replay.replays import Replays, Source, Unusable
from replay.session import Options
from replay.wishes import dressed, served
from store.bundle import Bundle
from store.datadir import DataDir, DataDirError, opened
from store.modes import Modes
from store.profiles import shipped
from store.spool import Spool, SpoolError

type Told = Mapping[str, Any]

ENGINES = {"mitmproxy": mitm.run, "lane": lane.run}

REST_EACH = 60.0
"""Seconds between two looks for replays that nobody asks any more."""


async def main(told: Told) -> None:
    """Serve until stdin ends or SIGTERM comes. Raises Failure where the door cannot open."""
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    async with asyncio.TaskGroup() as group:
        parent = group.create_task(_until_end(stdin, stop))
        try:
            await _serve(told, stop)
        finally:
            parent.cancel()


async def _until_end(stdin: asyncio.StreamReader, stop: asyncio.Event) -> None:
    """Our parent's end is ours."""
    await stdin.read()
    stop.set()


async def _serve(told: Told, stop: asyncio.Event) -> None:
    data = opened(Path(told["data"]))
    authority = ensure(data.keys)
    profiles = shipped(told["profiles_toml"])
    redactor = Redactor(key=data.redaction_key(), profiles=profiles)
    with _spool(told, data) as spool:
        recorder = _recorder(told, spool, redactor) if spool and {"record", "auto"} & _modes(told) else None
        notes = _notes(told, data, spool)
        config = _config(told, data, authority, stop)
        takes = _takes(told, config, data, notes, profiles) if recorder and told["mode"] == "auto" else None
        replays = (
            await _replays(told, config, redactor, profiles, notes, takes)
            if told["mode"] in ("replay", "auto")
            else None
        )
        if recorder:
            recorder.counts, recorder.takes = config.counts, takes
        async with asyncio.TaskGroup() as group:
            works = [notes.keep(replays), _resting(replays)] if replays else []
            works += [takes.watch(replays)] if replays and takes else []
            works += [keep(config.counts, spool.directory)] if spool else []
            beside = [group.create_task(work) for work in works]
            engine = ENGINES[told["engine"]]
            answerer = replays and Counting(replays, config.counts)
            await engine(config, recorder, answerer, lambda port: _ready(port, authority))
            for task in beside:
                task.cancel()
        if replays:
            notes.end(replays)
            if takes:
                takes.close(replays)
            notes.close()
        if recorder:
            await recorder.settled()
        if spool:
            note(config.counts, spool.directory)


def _modes(told: Told) -> set[str]:
    """Every mode that some host has here."""
    return {told["mode"], *told["modes"].values()}


@contextmanager
def _spool(told: Told, data: DataDir) -> Iterator[Spool | None]:
    """A spool of the door's own, where it has something to tell the keeper."""
    if not told["spooled"]:
        yield None
        return
    limit, durability = told["spool_limit"], told["durability"]
    try:
        spool = Spool(data.spools / told["name"], max_bytes=limit, durability=durability)
    except SpoolError as error:
        raise Failure(f"{error}; make room or choose another data directory with --data DIR") from error
    with spool:
        yield spool


def _recorder(told: Told, spool: Spool, redactor: Redactor) -> Leading:
    limit, policy = told["body_limit"], told["on_record_failure"]
    return Leading(spool, redactor, body_limit=limit, on_failure=policy, now=time.time_ns)


def _notes(told: Told, data: DataDir, spool: Spool | None) -> Notes:
    file = told["replay_options"].get("report")
    return Notes(file=Path(file) if file else None, spool=spool, place=data.replays, up=told["started"])


def _takes(told: Told, config: DoorConfig, data: DataDir, notes: Notes, profiles: Profiles) -> Takes | None:
    """The takes of a door that answers runs from the store. A command's own door settles what it recorded by itself."""
    if told["replay_options"].get("id"):
        return None
    takes = Takes(
        place=data.replays,
        up=f"{told['started']:x}",
        notes=notes,
        profiles=profiles,
        own_mode=config.own_mode,
        run_mode=config.run_mode,
    )
    takes.inherit()
    return takes


async def _resting(replays: Replays) -> None:
    while True:
        await asyncio.sleep(REST_EACH)
        replays.rest()


async def _replays(
    told: Told, config: DoorConfig, redactor: Redactor, profiles: Profiles, notes: Notes, takes: Takes | None
) -> Replays:
    wishes, options = told["replay_options"], _options(told, config)
    fetch = from_keeper(told["api"], told["token"]) if told["api"] else None

    async def load(name: str) -> Source | None:
        if fetch is None:
            return None
        found = await fetch(name)
        own = served(options, found.wishes) if found.made else options
        if takes and (not found.made or found.records):
            source = takes.begun(name, found, own)
        elif found.bundle is None:
            return None
        else:
            source = Source(replay=name, bundle=found.bundle, options=own)
        return await asyncio.to_thread(dressed, source, found.wishes, own, profiles, redactor.text)

    if not wishes.get("report"):
        notes.inherit()
    replays = Replays(
        redactor=redactor,
        profiles=profiles,
        options=options,
        load=load if fetch else None,
        changed=notes.changed,
        begin=notes.begin,
        run_mode=config.run_mode,
        now=asyncio.get_running_loop().time,
    )
    adopt = partial(from_file, redactor=redactor, profiles=profiles)
    found = _different([await _source(name, wishes.get("id"), fetch, adopt) for name in told["replay"]])
    _reached(options.from_step, found)
    if takes:
        # What the store has begins when it is asked for, and anew when it has ended: as the next generation, where it is one.
        files = [os.path.isfile(name) for name in told["replay"]]
        replays.given = tuple(name for name, file in zip(told["replay"], files, strict=True) if not file)
        found = [source for source, file in zip(found, files, strict=True) if file]
        takes.all_of = replays.given[0] if len(replays.given) == 1 and not found else None
    try:
        sources = [dressed(source, wishes, options, profiles, redactor.text) for source in found]
    except Unusable as why:
        raise Failure(f"{wishes.get('overrides_file') or 'the replay cannot be'}: {why}") from why
    if takes:
        for source in sources:
            takes.lead(str(source.bundle.run["id"]))
    await replays.start(sources)
    return replays


def _options(told: Told, config: DoorConfig) -> Options:
    wishes = told["replay_options"]
    return Options(
        pace=pace(wishes.get("pace", "instant")),
        on_miss=wishes.get("on_miss", "live" if told["mode"] == "auto" else "fail"),
        after_last=wishes.get("after_last", "miss"),
        from_step=wishes.get("from_step") or 1,
        allow_unused=wishes.get("allow_unused", False),
        own_mode=config.own_mode,
        listed=wishes.get("listed", False),
        called=wishes.get("called"),
    )


async def _source(name: str, identity: str | None, fetch: Fetch | None, adopt: Callable[[Path], Bundle]) -> Source:
    if fetch is None or os.path.isfile(name):
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
                f"run {source.bundle.run['id']} has {len(source.bundle.entries)} steps, and none is left from step"
                f" {from_step} on; name an earlier one"
            )


def _config(told: Told, data: DataDir, authority: Authority, stop: asyncio.Event) -> DoorConfig:
    return DoorConfig(
        authority=authority,
        mode=told["mode"],
        host=told["listen"],
        port=told["port"],
        reuse_port=told["reuse_port"],
        reverse=told["reverse"],
        upstreams=told["upstreams"],
        modes=told["modes"],
        # Only where all modes can be had; the doors of a single command have but one run.
        run_mode=Modes(data.replays).of if told["mode"] == "auto" and told["api"] else _no_mode,
        tunnel=tuple(told["tunnel"]),
        upstream_proxy=told["upstream_proxy"],
        upstream_ca=told["upstream_ca"],
        token=told["token"],
        own_addresses=tuple((host, port) for host, port in told["own_addresses"]),
        connect_ports=tuple(told["connect_ports"]),
        allow_private=told["allow_private"],
        owner=f"{told['started']:x}",
        stop=stop,
    )


def _no_mode(_run: str) -> None:
    return None


def _ready(port: int, authority: Authority) -> None:
    _say({"ready": True, "port": port, "ca": str(authority.certificate), "ca_bundle": str(authority.bundle)})


def _loops(told: Told) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: the lane runs on uvloop, where there is one. None: asyncio's own.

    Below another proxy every connection is mitmproxy's, which was not made for it.
    """
    if told["engine"] != "lane" or told["upstream_proxy"] or find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def _say(words: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        line: Told = json.loads(sys.stdin.buffer.readline())
        asyncio.run(main(line), loop_factory=_loops(line))
    except* (Failure, DataDirError) as failures:
        _say({"failed": str(failures.exceptions[0])})
        sys.exit(125)
