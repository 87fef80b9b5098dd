"""Where a door gets the recordings from that it replays: a file of any format, or the keeper, which makes a bundle."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2

from calls.model import UnknownFormat
from calls.profile import Profiles
from calls.redact import Redactor
from proxy.api import segment
from proxy.errors import Failure
from proxy.generations import newest
from replay.wishes import Wishes, wished
from store.bundle import BadBundle, Bundle, read
from store.foreign.adopt import Adoption, bundle_of
from store.foreign.found import NotReadable
from store.foreign.read import named, opened

type Fetch = Callable[[str], Awaitable[tuple[Bundle, Wishes] | None]]


def from_file(path: Path, redactor: Redactor, profiles: Profiles) -> Bundle:
    """The run in a file: a bundle, or what another program recorded. Raises Failure naming what is wrong with it."""
    try:
        source = opened(path)
        if source.form != "bundle":
            adoption = Adoption(run=named(path), redactor=redactor, at=path.stat().st_mtime_ns)
            return read(bundle_of(adoption, source.found, profiles.digest, path.name))
        with path.open("rb") as lines:
            return read(lines)
    except OSError as error:
        raise Failure(f"cannot read the bundle {path}: {error.strerror}") from error
    except (BadBundle, UnknownFormat, NotReadable) as error:
        raise Failure(f"{path}: {error}") from error


def from_keeper(api: str, token: str | None) -> Fetch:
    """A loader of runs, and of replays and forks that were made over REST with what was wished for of them, by their ids."""
    headers = {"authorization": f"Bearer {token}"} if token else {}

    async def load(name: str) -> tuple[Bundle, Wishes] | None:
        async with httpx2.AsyncClient(base_url=f"{api}/v1", headers=headers, timeout=60.0, trust_env=False) as http:
            try:
                replay = await http.get(f"/replays/{segment(name)}")
                told = replay.json() if replay.status_code == 200 else {"run": name}
                run = await http.get(f"/runs/{segment(told['run'])}")
                named = newest(told["run"], run.json()) if run.status_code == 200 else told["run"]
                answer = await http.get(f"/runs/{segment(named)}/bundle?calls=keys")
            except httpx2.HTTPError as error:
                raise Failure(
                    f"cannot fetch run {name}: the keeper at {api} cannot be reached ({error}); is it running?"
                ) from error
            if answer.status_code != 200:
                return None
            return read(answer.content.splitlines(keepends=True)), wished(told)

    return load
