"""Load the recordings that a worker replays from the store server."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from calls.keys.profile import Profiles
from calls.project_runs import full_run_name, split_run_name
from proxy.errors import Failure
from proxy.processes.http_client import HttpClient, HttpError
from proxy.processes.http_reader import HttpReader
from proxy.processes.store_client import path_segment
from proxy.worker.recordings import Fetch, FetchMany, FoundRecording
from replay.recording import build_recording, pause_gc
from store.bundle import rows_bundle
from store.generations.build import FLAWED

LISTED: Final = 500
"""Runs of a page of a list."""

FETCH_TIMEOUT: Final = 60.0
"""Seconds that the store server may take to answer."""


def store_loader(api: str, token: str | None, profiles: Profiles | None = None) -> Fetch:
    """Return a loader of runs, and of replays and forks that were created over REST with their options, by their full names.

    With `profiles`, it also makes what answers requests of a recording without edits: another thread later would take longer.
    """
    headers = {"authorization": f"Bearer {token}"} if token else {}
    reader = HttpReader(api, headers=headers, timeout=FETCH_TIMEOUT)
    read = pause_gc()(rows_bundle.read_named_recording)

    def fetch(project: str, name: str) -> FoundRecording:
        answer = reader.get(f"/v1/replays/{path_segment(name)}/rows", {"project": project})
        if answer.status_code == 404:
            return FoundRecording(run=name)
        if answer.status_code != 200:
            text = answer.content.decode("utf-8", "replace")[:300]
            raise Failure(f"cannot fetch run {name}: the store server at {api} answered {answer.status_code}: {text}")
        head, bundle = read(answer.content)
        found = FoundRecording(
            run=head.run,
            bundle=bundle,
            replay_options=head.requested or {},
            is_replay=head.requested is not None,
            is_flawed=FLAWED in head.labels,
        )
        if profiles is None or bundle is None or found.is_edited:
            return found
        return replace(found, recording=build_recording(bundle, profiles))

    async def load(full_name: str) -> FoundRecording:
        project, name = split_run_name(full_name)
        try:
            # In a thread, so that other requests are answered meanwhile.
            return await asyncio.to_thread(fetch, project, name)
        except HttpError as error:
            raise Failure(
                f"cannot fetch run {name}: the store server at {api} cannot be reached ({error}); is it running?"
            ) from error

    return load


def preloader(api: str, token: str | None, secret: str) -> FetchMany:
    """Return a function that fetches several runs by one request, which the audit log has as one that nobody asked for."""
    headers = {rows_bundle.PRELOAD_HEADER: secret} | ({"authorization": f"Bearer {token}"} if token else {})

    @pause_gc()
    def fetch(full_names: Sequence[str]) -> dict[str, FoundRecording | None]:
        project = split_run_name(full_names[0])[0]
        http = HttpClient(api, params={"project": project}, headers=headers)
        names = [split_run_name(one)[1] for one in full_names]
        answer = http.request("GET", "/v1/preload", params={"run": names}, timeout=FETCH_TIMEOUT)
        if answer.status_code != 200:
            text = answer.content.decode("utf-8", "replace")[:300]
            raise Failure(f"cannot load runs ahead: the store server at {api} answered {answer.status_code}: {text}")
        return {
            full_run_name(project, head.run): FoundRecording(
                run=head.run, bundle=bundle, is_flawed=FLAWED in head.labels
            )
            if bundle
            else None
            for head, bundle in rows_bundle.read_named_recordings(answer.content)
        }

    async def load(full_names: Sequence[str]) -> Mapping[str, FoundRecording | None]:
        try:
            return await asyncio.to_thread(fetch, full_names)
        except HttpError as error:
            raise Failure(f"cannot load runs ahead: the store server at {api} cannot be reached ({error})") from error

    return load


def run_lister(
    api: str, token: str | None, project: str, *, only_ended: bool = False
) -> Callable[[int, int], Awaitable[list[str]]]:
    """Return a function that lists the newest runs of a project (`preloaded_recordings.ListRuns`).

    `only_ended`: without those that others may be recording, which would be loaded again and again.
    """
    headers = {"authorization": f"Bearer {token}"} if token else {}

    def list_runs(limit: int, most_exchanges: int) -> list[str]:
        http = HttpClient(api, params={"project": project, "fields": "id,exchanges,ended_at"}, headers=headers)
        names: list[str] = []
        cursor: dict[str, str] = {}
        while len(names) < limit:
            answer = http.request("GET", "/v1/runs", params={"limit": str(LISTED), **cursor}, timeout=FETCH_TIMEOUT)
            if answer.status_code != 200:
                raise Failure(f"cannot list the runs: the store server at {api} answered {answer.status_code}")
            page = answer.json()
            names += [
                full_run_name(project, one["id"])
                for one in page["items"]
                if one["exchanges"] <= most_exchanges and not (only_ended and one["ended_at"] is None)
            ]
            if not page["next"]:
                break
            cursor = {"cursor": page["next"]}
        return names[:limit]

    async def list_in_thread(limit: int, most_exchanges: int) -> list[str]:
        try:
            return await asyncio.to_thread(list_runs, limit, most_exchanges)
        except HttpError as error:
            raise Failure(f"cannot list the runs: the store server at {api} cannot be reached ({error})") from error

    return list_in_thread
