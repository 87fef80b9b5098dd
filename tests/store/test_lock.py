"""Lock files that others look at."""

import os
import time
from pathlib import Path

import pytest

from store import lock as locks
from store.lock import Lock, LockTaken


def test_whoever_only_looks_at_a_lock_keeps_nobody_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`is_held` holds it for an instant, which on a busy machine is a long one."""
    lock = Lock(tmp_path / "lock")
    looking = lock.acquire_shared()
    assert looking is not None
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == locks.TRIES - 1:
            os.close(looking)

    monkeypatch.setattr(time, "sleep", sleep)
    with lock.hold():
        assert lock.is_held()
    assert len(pauses) == locks.TRIES - 1


def test_a_lock_that_is_held_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    lock = Lock(tmp_path / "lock")
    with lock.hold():
        with pytest.raises(LockTaken), lock.hold():
            pass
        assert lock.is_held()
    assert not lock.is_held()
