"""The stage stands as long as the tests of this folder run in a worker, one after another: an idle store server still takes a hundredth of a core."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.embedded.postgres import EmbeddedServer
from tests.peers.record_and_replay import RecordAndReplay, Service, Upstream, config, service, upstreams
from tests.support.postgres import fresh, memory_directory


@pytest.fixture(scope="package")
def _upstream() -> Iterator[Upstream]:
    with upstreams() as upstream:
        yield upstream


@pytest.fixture(scope="package")
def _place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="playhead-test-", dir=memory_directory()))
    if os.geteuid() == 0:
        place.chmod(0o711)
    yield place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="package")
def _recorder(_upstream: Upstream, _place: Path, postgres_server: EmbeddedServer) -> Iterator[Service]:
    with fresh(postgres_server) as database:
        flags = ("--database-url", database)
        with service(_place / "record", *flags, config=config(_upstream.port)) as recorder:
            yield recorder


@pytest.fixture(scope="package")
def _player(_upstream: Upstream, _place: Path, postgres_server: EmbeddedServer) -> Iterator[Service]:
    with fresh(postgres_server) as database:
        flags = ("--database-url", database, "--mode", "replay")
        with service(_place / "replay", *flags, config=config(_upstream.port)) as player:
            yield player


@pytest.fixture
def services(_upstream: Upstream, _recorder: Service, _player: Service) -> RecordAndReplay:
    """A run of its own on the stage of all."""
    _upstream.answers, _upstream.together = {}, None
    _upstream.asked.clear()
    return RecordAndReplay(upstream=_upstream, recorder=_recorder, player=_player)
