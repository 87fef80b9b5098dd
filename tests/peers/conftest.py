"""The stage stands as long as the tests of this folder run: what starts slowly starts once."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.postgres import Server
from tests.peers.stage import Service, Stage, Upstream, config, service, upstreams
from tests.support.postgres import TEMPLATE, create, database_url, postgres_server, run, url

__all__ = ["database_url", "postgres_server"]


@pytest.fixture(scope="session")
def _upstream() -> Iterator[Upstream]:
    with upstreams() as upstream:
        yield upstream


@pytest.fixture(scope="session")
def _place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="playhead-test-"))
    if os.geteuid() == 0:
        place.chmod(0o711)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def _recorder(_upstream: Upstream, _place: Path, postgres_server: Server) -> Iterator[Service]:
    create(postgres_server, "peers_record", template=TEMPLATE)
    flags = ("--database-url", url(postgres_server, "peers_record"))
    with service(_place / "record", *flags, config=config(_upstream.port)) as recorder:
        yield recorder
    run(postgres_server, "dropdb", "--force", "peers_record")


@pytest.fixture(scope="session")
def _player(_upstream: Upstream, _place: Path, postgres_server: Server) -> Iterator[Service]:
    create(postgres_server, "peers_replay", template=TEMPLATE)
    flags = ("--database-url", url(postgres_server, "peers_replay"), "--mode", "replay")
    with service(_place / "replay", *flags, config=config(_upstream.port)) as player:
        yield player
    run(postgres_server, "dropdb", "--force", "peers_replay")


@pytest.fixture
def stage(_upstream: Upstream, _recorder: Service, _player: Service) -> Stage:
    """A run of its own on the stage of all."""
    _upstream.answers, _upstream.together = {}, None
    _upstream.asked.clear()
    return Stage(upstream=_upstream, recorder=_recorder, player=_player)
