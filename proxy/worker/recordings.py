"""Load the recordings that a worker replays: from a file of any format, or from the store server."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from calls.keys.profile import Profiles
from calls.model import UnknownFormat
from calls.redaction.redactor import Redactor
from proxy.errors import Failure
from proxy.processes.store_client import NOBODY, segment
from replay.recording import undisturbed
from replay.replay_options import Wishes, wished
from store.bundle import rows_bundle as packed
from store.bundle.bundle import BadBundle, Bundle, read
from store.database.blobs import Corrupt
from store.foreign.adopt import Adoption, bundle_of
from store.foreign.contents import NotReadable
from store.foreign.read import named, opened, plain
from store.generations.build import FLAWED
from store.generations.names import newest


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecording:
    """What there is by the name of a run or of a replay."""

    run: str
    """Which run."""

    bundle: Bundle | None = None
    """None: nothing is recorded of it."""

    wishes: Wishes = field(default_factory=dict)
    made: bool = False
    """Somebody made a replay, or a fork, of that name."""

    flawed: bool = False
    """It was recorded in mode `auto` and is not whole, so it does not count there."""

    @property
    def records(self) -> bool:
        """Whether what the replay lacks is to be recorded."""
        return (self.wishes.get("options") or {}).get("on_miss") == "record"


type Fetch = Callable[[str], Awaitable[FoundRecording]]


@undisturbed()
def from_file(path: Path, redactor: Redactor, profiles: Profiles) -> Bundle:
    """The run in a file: a bundle, or what another program recorded. Raises Failure naming what is wrong with it."""
    try:
        if packed.is_packed(path):
            return packed.load(path)
        source = opened(path)
        if source.form != "bundle":
            adoption = Adoption(run=named(path), redactor=redactor, at=path.stat().st_mtime_ns)
            return read(bundle_of(adoption, source.found, profiles.digest, path.name))
        with plain(path) as lines:
            return read(lines)
    except OSError as error:
        raise Failure(f"cannot read the bundle {path}: {error.strerror}") from error
    except (BadBundle, Corrupt, UnknownFormat, NotReadable) as error:
        raise Failure(f"{path}: {error}") from error


def from_store(api: str, token: str | None) -> Fetch:
    """A loader of runs, and of replays and forks that were made over REST with what was wished for of them, by their ids."""
    url, headers = f"{api}/v1", {"authorization": f"Bearer {token}"} if token else {}

    async def load(name: str) -> FoundRecording:
        async with httpx2.AsyncClient(
            base_url=url, headers=headers, timeout=60, trust_env=False, verify=NOBODY
        ) as http:
            try:
                replay = await http.get(f"/replays/{segment(name)}")
                told = replay.json() if replay.status_code == 200 else {}
                made = "wishes" in told
                name_of = str(told["run"]) if made else name
                run = await http.get(f"/runs/{segment(name_of)}")
                shape = run.json() if run.status_code == 200 else {"labels": {}}
                answer = await http.get(f"/runs/{segment(newest(name_of, shape))}/rows")
            except httpx2.HTTPError as error:
                raise Failure(
                    f"cannot fetch run {name}: the store server at {api} cannot be reached ({error}); is it running?"
                ) from error
            if answer.status_code not in (200, 404):
                raise Failure(
                    f"cannot fetch run {name}: the store server at {api} answered {answer.status_code}: {answer.text[:300]}"
                )
            # Beside the loop: others are answered meanwhile.
            bundle = (
                await asyncio.to_thread(undisturbed()(packed.read), answer.content)
                if answer.status_code == 200
                else None
            )
            flawed = FLAWED in (shape["labels"] or {})
            return FoundRecording(run=name_of, bundle=bundle, wishes=wished(told), made=made, flawed=flawed)

    return load
